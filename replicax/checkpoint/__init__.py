"""Checkpoints: the state of a training on disk, written and read in parts by the devices that hold it (Orbax)."""

from replicax.checkpoint.checkpoint import Checkpoint
from replicax.checkpoint.contents import Contents
from replicax.checkpoint.load_status import LoadStatus
from replicax.checkpoint.manager import CheckpointManager
from replicax.checkpoint.metadata import Entry, Metadata, read_metadata
from replicax.checkpoint.numbered import NumberedCheckpoint, latest_checkpoint, newest, numbered
from replicax.checkpoint.preemption import PreemptionCheckpointHandler, TerminationConfig
from replicax.checkpoint.reading import damaged_files, entries, read_arrays, read_state
from replicax.checkpoint.variable_files import restore_variables, write_variables
from replicax.checkpoint.variable_names import variables_of
from replicax.checkpoint.writing import write, write_arrays

__all__ = [
    "Checkpoint",
    "CheckpointManager",
    "Contents",
    "Entry",
    "LoadStatus",
    "Metadata",
    "NumberedCheckpoint",
    "PreemptionCheckpointHandler",
    "TerminationConfig",
    "damaged_files",
    "entries",
    "latest_checkpoint",
    "newest",
    "numbered",
    "read_arrays",
    "read_metadata",
    "read_state",
    "restore_variables",
    "variables_of",
    "write",
    "write_arrays",
    "write_variables",
]
