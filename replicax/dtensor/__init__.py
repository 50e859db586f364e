"""DTensor: meshes, layouts and global tensors, after `tf.experimental.dtensor`."""

from replicax.dtensor.creation import (
    call_with_layout,
    stateless_normal,
    stateless_truncated_normal,
    stateless_uniform,
)
from replicax.dtensor.default_mesh import default_mesh, device_name, get_default_mesh, run_on
from replicax.dtensor.layout import MATCH, UNSHARDED, Layout
from replicax.dtensor.mesh import Mesh, create_mesh
from replicax.dtensor.tensors import (
    check_layout,
    copy_to_mesh,
    fetch_layout,
    is_dtensor,
    pack,
    relayout,
    relayout_like,
    unpack,
)
from replicax.dtensor.variable import DVariable, enable_save_as_bf16

__all__ = [
    "MATCH",
    "UNSHARDED",
    "DVariable",
    "Layout",
    "Mesh",
    "call_with_layout",
    "check_layout",
    "copy_to_mesh",
    "create_mesh",
    "default_mesh",
    "device_name",
    "enable_save_as_bf16",
    "fetch_layout",
    "get_default_mesh",
    "is_dtensor",
    "pack",
    "relayout",
    "relayout_like",
    "run_on",
    "stateless_normal",
    "stateless_truncated_normal",
    "stateless_uniform",
    "unpack",
]
