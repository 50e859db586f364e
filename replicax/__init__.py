"""replicax: distributed training for JAX and Keras 3. `import replicax as rx`."""

from replicax import config, dtensor, errors
from replicax.collectives import (
    CommunicationImplementation,
    CommunicationOptions,
    CrossDeviceOps,
    HierarchicalCopyAllReduce,
    NcclAllReduce,
    ReductionToOneDevice,
    RingAllReduce,
)
from replicax.data import InputContext, InputOptions, ValueContext
from replicax.errors import ReplicaDivergenceError, ReplicaxError
from replicax.exporting import LoadedFunction, export, load
from replicax.losses import compute_average_loss, scale_regularization_loss
from replicax.program import function, grad, value_and_grad
from replicax.reduce_op import ReduceOp
from replicax.strategies import (
    FullyShardedStrategy,
    LayoutStrategy,
    MirroredStrategy,
    MultiWorkerMirroredStrategy,
    OneDeviceStrategy,
    ReplicaContext,
    Strategy,
    TPUStrategy,
    get_replica_context,
    get_strategy,
    has_strategy,
    in_cross_replica_context,
    set_strategy,
)
from replicax.values import DistributedValues, Mirrored, PerReplica
from replicax.variables import Variable, VariableAggregation, VariableSynchronization

__version__ = "0.1.0"

__all__ = [
    "CommunicationImplementation",
    "CommunicationOptions",
    "CrossDeviceOps",
    "DistributedValues",
    "FullyShardedStrategy",
    "HierarchicalCopyAllReduce",
    "InputContext",
    "InputOptions",
    "LayoutStrategy",
    "LoadedFunction",
    "Mirrored",
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "NcclAllReduce",
    "OneDeviceStrategy",
    "PerReplica",
    "ReduceOp",
    "ReductionToOneDevice",
    "ReplicaContext",
    "ReplicaDivergenceError",
    "ReplicaxError",
    "RingAllReduce",
    "Strategy",
    "TPUStrategy",
    "ValueContext",
    "Variable",
    "VariableAggregation",
    "VariableSynchronization",
    "__version__",
    "compute_average_loss",
    "config",
    "dtensor",
    "errors",
    "export",
    "function",
    "get_replica_context",
    "get_strategy",
    "grad",
    "has_strategy",
    "in_cross_replica_context",
    "load",
    "scale_regularization_loss",
    "set_strategy",
    "value_and_grad",
]
