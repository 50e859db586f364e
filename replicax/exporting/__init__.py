"""Exporting compiled functions and their variables to files, which run without the code that made them."""

from replicax.exporting.loading import LoadedFunction, load_export
from replicax.exporting.writing import export

__all__ = ["LoadedFunction", "export", "load_export"]
