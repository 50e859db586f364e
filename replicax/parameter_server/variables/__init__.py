"""Variables whose values live on servers."""
