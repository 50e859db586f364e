"""Keras's variables in programs."""
