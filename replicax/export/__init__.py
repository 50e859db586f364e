"""Export: compiled functions with their variables as files that run without the code that made them."""

from replicax.export.loading import LoadedFunction, load
from replicax.export.writing import export

__all__ = ["LoadedFunction", "export", "load"]
