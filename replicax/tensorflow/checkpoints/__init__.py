"""Checkpoints that TensorFlow and Keras 2 wrote, read without TensorFlow: `rx.checkpoint.tensorflow`.

`open_checkpoint` (`reader.py`) finds the files (`locating.py`). A source reads each format: `bundle.py` TensorFlow 2's
and those of `Saver`, whose index is a table (`table.py`) of protocol buffers (`wire.py`) with checksums (`crc32c.py`);
`saver_v1.py` those of TensorFlow 1's first `Saver`; `hdf5.py` Keras's weights. `object_graph.py` has the objects.
`rx.Checkpoint.restore` gives their values to objects here (`restoring.py`). `matching.py` finds out which variable
(`targets.py`) gets which tensor (`matches.py`): as the user says (`user_mapping.py`), by object path (`paths.py`), by
names (`names.py`), by shapes and order (`layer_order.py`). Optimizers have their own names for what they keep
(`optimizers.py`, `optimizer_state.py`, `slot_names.py`, `hdf5_optimizer.py`).
"""

from replicax.tensorflow.checkpoints.locating import is_tensorflow, latest_tensorflow as latest_tensorflow
from replicax.tensorflow.checkpoints.object_graph import Node, ObjectGraph, SavedTensor, Slot
from replicax.tensorflow.checkpoints.reader import TensorFlowCheckpoint, open_checkpoint
from replicax.tensorflow.checkpoints.restoring import restore_tensorflow as restore_tensorflow
from replicax.tensorflow.checkpoints.tensors import TensorInfo

__all__ = [
    "Node",
    "ObjectGraph",
    "SavedTensor",
    "Slot",
    "TensorFlowCheckpoint",
    "TensorInfo",
    "is_tensorflow",
    "open_checkpoint",
]  # The package itself also uses the other names above.
