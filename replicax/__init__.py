"""replicax: distributed training for JAX and Keras 3. `import replicax as rx`."""

import sys
from typing import TYPE_CHECKING

from replicax import (
    checkpoint,
    cluster as cluster_resolver,
    config,
    coordinator,
    data,
    dtensor,
    errors,
    estimator,
    health,
)
from replicax.aggregation import VariableAggregation, VariableSynchronization
from replicax.checkpoint import (
    Checkpoint,
    CheckpointManager,
    PreemptionCheckpointHandler,
    TerminationConfig,
    latest_checkpoint,
)
from replicax.collectives import (
    CommunicationImplementation,
    CommunicationOptions,
    CrossDeviceOps,
    HierarchicalCopyAllReduce,
    Int8,
    NcclAllReduce,
    PowerSGD,
    ReductionToOneDevice,
    RingAllReduce,
)
from replicax.data import AutoShardPolicy, InputContext, InputOptions, ValueContext
from replicax.errors import ReplicaDivergenceError, ReplicaxError
from replicax.exporting import LoadedFunction, export, load_export
from replicax.losses import compute_average_loss, scale_regularization_loss
from replicax.migration import not_found
from replicax.parameter_server import (
    FixedShardsPartitioner,
    MaxSizePartitioner,
    MinSizePartitioner,
    ParameterServerStrategy,
    Partitioner,
    Server,
    ShardedVariable,
)
from replicax.program import TensorSpec, function, grad, value_and_grad
from replicax.program.keras_backend import choose_jax_for_keras
from replicax.reduce_op import ReduceOp
from replicax.renamed import RENAMED, renamed
from replicax.scattering import IndexedSlices
from replicax.strategies import (
    CentralStorageStrategy,
    FullyShardedStrategy,
    GradientMemory,
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
from replicax.variables import Module, Variable

choose_jax_for_keras()  # The one thing that importing replicax does: it can be done before Keras is imported only.

__version__ = "0.1.0"

__all__ = [
    "AutoShardPolicy",
    "CentralStorageStrategy",
    "Checkpoint",
    "CheckpointManager",
    "CommunicationImplementation",
    "CommunicationOptions",
    "CrossDeviceOps",
    "DistributedValues",
    "FixedShardsPartitioner",
    "FullyShardedStrategy",
    "GradientMemory",
    "HierarchicalCopyAllReduce",
    "IndexedSlices",
    "InputContext",
    "InputOptions",
    "Int8",
    "LayoutStrategy",
    "LoadedFunction",
    "MaxSizePartitioner",
    "MinSizePartitioner",
    "Mirrored",
    "MirroredStrategy",
    "Module",
    "MultiWorkerMirroredStrategy",
    "NcclAllReduce",
    "OneDeviceStrategy",
    "ParameterServerStrategy",
    "Partitioner",
    "PerReplica",
    "PowerSGD",
    "PreemptionCheckpointHandler",
    "ReduceOp",
    "ReductionToOneDevice",
    "ReplicaContext",
    "ReplicaDivergenceError",
    "ReplicaxError",
    "RingAllReduce",
    "Server",
    "ShardedVariable",
    "Strategy",
    "TPUStrategy",
    "TensorSpec",
    "TerminationConfig",
    "ValueContext",
    "Variable",
    "VariableAggregation",
    "VariableSynchronization",
    "__version__",
    "checkpoint",
    "cluster_resolver",
    "compute_average_loss",
    "config",
    "coordinator",
    "data",
    "dtensor",
    "errors",
    "estimator",
    "export",
    "function",
    "get_replica_context",
    "get_strategy",
    "grad",
    "has_strategy",
    "health",
    "in_cross_replica_context",
    "latest_checkpoint",
    "load_export",
    "scale_regularization_loss",
    "set_strategy",
    "testing",
    "value_and_grad",
]


if TYPE_CHECKING:
    import replicax.testing as testing
    from replicax import keras as keras
    from replicax.data import FileSource as FileSource
    from replicax.exporting import load_export as load  # noqa: F401
    from replicax.keras.sidecar import SidecarEvaluator as SidecarEvaluator
else:  # For a type checker every name would exist.

    def __getattr__(name: str) -> object:
        """Loads `rx.testing` when it is first asked for. Knows old names and TensorFlow's."""
        if name == "testing":
            import replicax.testing as testing

            return testing
        if name in RENAMED:
            return renamed(sys.modules[__name__], name)
        raise not_found(__name__, name)
