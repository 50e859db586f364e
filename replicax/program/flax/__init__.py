"""The variables and modules of flax's `nnx` in programs."""
