"""Checkpoints: the values of variables on disk, written and read in parts by the devices that hold them (Orbax)."""

from replicax.checkpoint.objects import variables_of
from replicax.checkpoint.state import restore_variables, write_variables
from replicax.checkpoint.store import Entry, entries, read_arrays, write_arrays

__all__ = [
    "Entry",
    "entries",
    "read_arrays",
    "restore_variables",
    "variables_of",
    "write_arrays",
    "write_variables",
]
