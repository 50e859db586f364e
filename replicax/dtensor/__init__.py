"""DTensor: meshes, layouts and global tensors, after `tf.experimental.dtensor`."""

from typing import TYPE_CHECKING

from replicax.contracts.advice import not_found
from replicax.dtensor.barriers import barrier
from replicax.dtensor.clients import (
    client_id,
    full_job_name,
    heartbeat_enabled,
    initialize_accelerator_system,
    job_name,
    jobs,
    local_devices,
    num_clients,
    num_global_devices,
    num_local_devices,
    preferred_device_type,
    shutdown_accelerator_system,
)
from replicax.dtensor.communication import CommunicationReport, communication
from replicax.dtensor.creation import (
    call_with_layout,
    stateless_normal,
    stateless_truncated_normal,
    stateless_uniform,
)
from replicax.dtensor.dataset import DTensorDataset
from replicax.dtensor.default_mesh import default_mesh, device_name, get_default_mesh, run_on
from replicax.dtensor.layout import Layout
from replicax.dtensor.mesh import Mesh, MeshDimension
from replicax.dtensor.mesh_creation import create_distributed_mesh, create_mesh
from replicax.dtensor.saving import (
    Checkpoint,
    name_based_restore,
    name_based_save,
    saved_tensors,
    sharded_save,
)
from replicax.dtensor.specs import MATCH, UNSHARDED
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
    "Checkpoint",
    "CommunicationReport",
    "DTensorDataset",
    "DVariable",
    "Layout",
    "Mesh",
    "MeshDimension",
    "barrier",
    "call_with_layout",
    "check_layout",
    "client_id",
    "communication",
    "copy_to_mesh",
    "create_distributed_mesh",
    "create_mesh",
    "default_mesh",
    "device_name",
    "enable_save_as_bf16",
    "fetch_layout",
    "full_job_name",
    "get_default_mesh",
    "heartbeat_enabled",
    "initialize_accelerator_system",
    "is_dtensor",
    "job_name",
    "jobs",
    "local_devices",
    "name_based_restore",
    "name_based_save",
    "num_clients",
    "num_global_devices",
    "num_local_devices",
    "pack",
    "preferred_device_type",
    "relayout",
    "relayout_like",
    "run_on",
    "saved_tensors",
    "sharded_save",
    "shutdown_accelerator_system",
    "stateless_normal",
    "stateless_truncated_normal",
    "stateless_uniform",
    "unpack",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise not_found(__name__, name)
