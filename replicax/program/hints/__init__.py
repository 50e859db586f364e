"""The search for steps that run and compute something else than what is meant."""
