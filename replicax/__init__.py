"""replicax: distributed training for JAX and Keras 3. `import replicax as rx`."""

import importlib
import sys
from typing import TYPE_CHECKING

from replicax import cluster as cluster_resolver, collectives, config, data, errors
from replicax.contracts import upper_rooms
from replicax.contracts.advice import not_found
from replicax.errors import ReplicaDivergenceError, ReplicaxError
from replicax.group import health
from replicax.moved import RENAMED, renamed
from replicax.program import function, grad, value_and_grad
from replicax.program.keras.backend import choose_jax_for_keras
from replicax.strategies import (
    CentralStorageStrategy,
    Elastic,
    MirroredStrategy,
    MultiWorkerMirroredStrategy,
    OneDeviceStrategy,
    Strategy,
    TPUStrategy,
    get_replica_context,
    get_strategy,
)
from replicax.strategies.losses import compute_average_loss, scale_regularization_loss
from replicax.values import PerReplica
from replicax.variables import Module, Variable
from replicax.version import __version__

choose_jax_for_keras()  # The one thing that importing replicax does: it can be done before Keras is imported only.
__path__.append(f"{__path__[0]}/moved")  # Old import paths of public modules.
upper_rooms.register(upper_rooms.EXCHANGE, lambda: importlib.import_module("replicax.cluster.exchange").exchanged)
upper_rooms.register(upper_rooms.PLANNING, lambda: importlib.import_module("replicax.planning.planning").plan_training)
upper_rooms.register(upper_rooms.NAME_TABLES, lambda: importlib.import_module("replicax.tensorflow.names").tables())
upper_rooms.register(
    upper_rooms.TENSORFLOW_CHECKPOINTS, lambda: importlib.import_module("replicax.tensorflow.checkpoints")
)

#: The front: strategies, what a training step is written with, checkpoints, and a module for each topic.
__all__ = [
    "CentralStorageStrategy",
    "Checkpoint",
    "CheckpointManager",
    "DiLoCoStrategy",
    "Elastic",
    "ExponentialMovingAverage",
    "FullyShardedStrategy",
    "LayoutStrategy",
    "LocalSGDStrategy",
    "MirroredStrategy",
    "Module",
    "MultiWorkerMirroredStrategy",
    "OneDeviceStrategy",
    "ParameterServerStrategy",
    "PerReplica",
    "PreemptionCheckpointHandler",
    "ReplicaDivergenceError",
    "ReplicaxError",
    "Strategy",
    "TPUStrategy",
    "Variable",
    "__version__",
    "accumulate_gradients",
    "checkpoint",
    "cluster_resolver",
    "collectives",
    "compute_average_loss",
    "config",
    "coordinator",
    "data",
    "dtensor",
    "errors",
    "estimator",
    "export",
    "exporting",
    "function",
    "get_replica_context",
    "get_strategy",
    "grad",
    "health",
    "keras",
    "lax",
    "load_export",
    "notebook",
    "plan",
    "plots",
    "progress",
    "remat",
    "scale_regularization_loss",
    "testing",
    "trackers",
    "tuning",
    "value_and_grad",
    "weights",
]


#: Modules and names that are loaded when they are first asked for: a training step by itself needs none of these.
_MODULES = {
    "checkpoint": "checkpoint",
    "coordinator": "parameter_server.namespace",
    "dtensor": "dtensor",
    "estimator": "estimator",
    "exit_codes": "errors.exit_codes",
    "exporting": "exporting",
    "keras": "keras",
    "lax": "program.loops.loops",
    "notebook": "tools.notebook",
    "plots": "tools.plots",
    "testing": "testing",
    "trackers": "tools.trackers",
    "tuning": "tools.tuning",
    "weights": "weights",
}
#: By name, the module that has it.
_LATER = {
    "Checkpoint": "checkpoint",
    "CheckpointManager": "checkpoint",
    "DiLoCoStrategy": "islands",
    "ExponentialMovingAverage": "strategies.averages",
    "FullyShardedStrategy": "strategies.fully_sharded",
    "LayoutStrategy": "strategies.layout",
    "LocalSGDStrategy": "islands",
    "ParameterServerStrategy": "parameter_server",
    "PreemptionCheckpointHandler": "checkpoint",
    "accumulate_gradients": "program.gradients.accumulation",
    "export": "exporting",
    "load_export": "exporting",
    "plan": "planning",
    "progress": "tools.reporting.progress",
    "remat": "program.gradients.rematerialized",
}

#: Names that stand here as `tf.distribute` has them, or for those who know them; they are not in front.
_ALSO = {
    "AutoShardPolicy": "data",
    "CommunicationImplementation": "collectives",
    "CommunicationOptions": "collectives",
    "CrossDeviceOps": "collectives",
    "DistributedValues": "values",
    "FixedShardsPartitioner": "parameter_server",
    "GradientMemory": "strategies",
    "HierarchicalCopyAllReduce": "collectives",
    "IndexedSlices": "values.scattering",
    "InputContext": "data",
    "InputOptions": "data",
    "MaxSizePartitioner": "parameter_server",
    "MinSizePartitioner": "parameter_server",
    "Mirrored": "values",
    "NcclAllReduce": "collectives",
    "Partitioner": "parameter_server",
    "ReduceOp": "contracts.reduce_op",
    "ReductionToOneDevice": "collectives",
    "ReplicaContext": "strategies",
    "RingAllReduce": "collectives",
    "Server": "parameter_server",
    "ShardedVariable": "parameter_server",
    "TensorSpec": "program",
    "TerminationConfig": "checkpoint",
    "ValueContext": "data",
    "VariableAggregation": "values.aggregation",
    "VariableSynchronization": "values.aggregation",
    "has_strategy": "strategies",
    "in_cross_replica_context": "strategies",
    "latest_checkpoint": "checkpoint",
    "print": "tools.reporting.printing",
    "set_strategy": "strategies",
}

if TYPE_CHECKING:
    import replicax.testing as testing
    from replicax import checkpoint, dtensor, estimator, exporting, keras, weights
    from replicax.checkpoint import (
        Checkpoint,
        CheckpointManager,
        PreemptionCheckpointHandler,
        TerminationConfig as TerminationConfig,
        latest_checkpoint as latest_checkpoint,
    )
    from replicax.collectives import (
        CommunicationImplementation as CommunicationImplementation,
        CommunicationOptions as CommunicationOptions,
        CrossDeviceOps as CrossDeviceOps,
        HierarchicalCopyAllReduce as HierarchicalCopyAllReduce,
        NcclAllReduce as NcclAllReduce,
        ReductionToOneDevice as ReductionToOneDevice,
        RingAllReduce as RingAllReduce,
    )
    from replicax.contracts.reduce_op import ReduceOp as ReduceOp
    from replicax.data import (
        AutoShardPolicy as AutoShardPolicy,
        FileSource as FileSource,
        InputContext as InputContext,
        InputOptions as InputOptions,
        ValueContext as ValueContext,
    )
    from replicax.errors import exit_codes as exit_codes
    from replicax.exporting import export, load_export, load_export as load  # noqa: F401
    from replicax.islands import DiLoCoStrategy, LocalSGDStrategy
    from replicax.keras.sidecar import SidecarEvaluator as SidecarEvaluator
    from replicax.parameter_server import (
        FixedShardsPartitioner as FixedShardsPartitioner,
        MaxSizePartitioner as MaxSizePartitioner,
        MinSizePartitioner as MinSizePartitioner,
        ParameterServerStrategy,
        Partitioner as Partitioner,
        Server as Server,
        ShardedVariable as ShardedVariable,
        namespace as coordinator,
    )
    from replicax.planning import plan
    from replicax.program import TensorSpec as TensorSpec
    from replicax.program.gradients.accumulation import accumulate_gradients
    from replicax.program.gradients.rematerialized import remat
    from replicax.program.loops import loops as lax
    from replicax.strategies import (
        GradientMemory as GradientMemory,
        ReplicaContext as ReplicaContext,
        has_strategy as has_strategy,
        in_cross_replica_context as in_cross_replica_context,
        set_strategy as set_strategy,
    )
    from replicax.strategies.averages import ExponentialMovingAverage
    from replicax.strategies.fully_sharded import FullyShardedStrategy
    from replicax.strategies.layout import LayoutStrategy
    from replicax.tools import notebook, plots, trackers, tuning
    from replicax.tools.reporting.printing import print as print
    from replicax.tools.reporting.progress import progress
    from replicax.values import DistributedValues as DistributedValues, Mirrored as Mirrored
    from replicax.values.aggregation import (
        VariableAggregation as VariableAggregation,
        VariableSynchronization as VariableSynchronization,
    )
    from replicax.values.scattering import IndexedSlices as IndexedSlices
else:  # For a type checker every name would exist.

    def __getattr__(name: str) -> object:
        """Loads modules and names when they are first asked for. Knows old names and TensorFlow's."""
        if place := _MODULES.get(name) or _LATER.get(name) or _ALSO.get(name):
            module = importlib.import_module(f"replicax.{place}")
            value = globals()[name] = module if name in _MODULES else getattr(module, name)
            return value
        if name in RENAMED:
            return renamed(sys.modules[__name__], name)
        raise not_found(__name__, name)

    def __dir__() -> list[str]:
        return sorted([*__all__, "print"])
