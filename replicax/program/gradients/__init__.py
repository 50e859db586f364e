"""Derivatives with respect to variables, their accumulation over micro-batches, and rematerialization."""
