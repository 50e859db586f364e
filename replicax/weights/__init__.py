"""Files of weights (HDF5, safetensors, KerasHub presets), read piece by piece into the layouts of variables."""

from replicax.weights.safetensors import load_safetensors
from replicax.weights.safetensors_saving import save_safetensors

__all__ = ["load_safetensors", "save_safetensors"]
