"""Programs in two parts, cut at the gradients: for variables on another device or on servers."""
