"""Checkpoints: the state of a training on disk or in a store, written and read by the devices that hold its parts.

A save of `rx.Checkpoint(model=model, step=3)` goes through these files:

1. `checkpoint.py` collects the contents. `contents.py` finds variables, arrays and states in the objects;
   `variable_names.py` names the variables by the path to them; `encoding.py` makes plain arrays and JSON of them.
2. `saving.py` begins it in all processes. `writing.py` lets each write the parts that its devices hold
   (`array_files.py`), in stages that all processes go through together (`coordination.py`).
3. `metadata.py` describes the shapes, dtypes and checksums. That is written last, and with it the checkpoint appears
   under its name (`places.py`, which alone knows how disks and stores differ).

A restore reads the metadata, compares the names (`name_matching.py`), and reads and checks the arrays (`reading.py`,
`integrity.py`, `json_fields.py`). Values of Keras objects that are not built (`unbuilt.py`) wait for their `build`
(`deferred.py`). `load_status.py` says what was used.

`manager.py` saves every so often, in the background (`copies.py`, `background.py`), and decides what stays in its
folder (`checkpoint_folder.py`, `numbered.py`, `policies.py`). `preemption.py` saves when a worker is preempted, at
a step on which all workers agree (`group/stop_vote.py`).

Checkpoints that TensorFlow wrote are read by `replicax/tensorflow/checkpoints`, through `foreign.py`.
"""

from typing import TYPE_CHECKING, Any

from replicax.checkpoint.checkpoint import Checkpoint
from replicax.checkpoint.contents import Contents
from replicax.checkpoint.foreign import tensorflow_checkpoints
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
    "tensorflow",
    "variables_of",
    "write",
    "write_arrays",
    "write_variables",
]

if TYPE_CHECKING:
    tensorflow: Any  # A module of an upper room, which checkers of types may not import here either.
else:

    def __getattr__(name: str) -> object:
        if name == "tensorflow":
            return tensorflow_checkpoints()
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        """Returns the names that are for users; the others are for the rooms above."""
        handlers = ["PreemptionCheckpointHandler", "TerminationConfig"]
        modules = ["policies", "tensorflow"]
        return ["Checkpoint", "CheckpointManager", "LoadStatus", *handlers, "latest_checkpoint", *modules]
