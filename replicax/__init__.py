"""replicax: distributed training for JAX and Keras 3. `import replicax as rx`."""

import importlib
import sys
from typing import TYPE_CHECKING

from replicax.compat.keras_backend import choose_jax_for_keras
from replicax.contracts import upper_rooms
from replicax.contracts.advice import not_found
from replicax.moved import RENAMED, renamed
from replicax.version import __version__

choose_jax_for_keras()  # The one thing that importing replicax does: it can be done before Keras is imported only.
__path__.append(f"{__path__[0]}/moved")  # Old import paths of public modules.
upper_rooms.register(upper_rooms.EXCHANGE, lambda: importlib.import_module("replicax.cluster.exchange").exchanged)
upper_rooms.register(upper_rooms.NAME_TABLES, lambda: importlib.import_module("replicax.tensorflow.names").tables())
upper_rooms.register(
    upper_rooms.TENSORFLOW_CHECKPOINTS, lambda: importlib.import_module("replicax.tensorflow.checkpoints")
)

__all__ = [
    "AutoShardPolicy",
    "BatchSize",
    "CentralStorageStrategy",
    "Checkpoint",
    "CheckpointManager",
    "CommunicationImplementation",
    "CommunicationOptions",
    "CrossDeviceOps",
    "DiLoCoStrategy",
    "DistributedValues",
    "Elastic",
    "ExponentialMovingAverage",
    "FixedShardsPartitioner",
    "FullyShardedStrategy",
    "GradientMemory",
    "HierarchicalCopyAllReduce",
    "IndexedSlices",
    "InputContext",
    "InputOptions",
    "Int8",
    "LayoutStrategy",
    "LearningRates",
    "LoadedFunction",
    "LocalSGDStrategy",
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
    "accumulate_gradients",
    "checkpoint",
    "cluster_resolver",
    "compute_average_loss",
    "cond",
    "config",
    "coordinator",
    "data",
    "dtensor",
    "errors",
    "estimator",
    "export",
    "find_batch_size",
    "find_learning_rate",
    "fori_loop",
    "function",
    "get_replica_context",
    "get_strategy",
    "grad",
    "has_strategy",
    "health",
    "in_cross_replica_context",
    "latest_checkpoint",
    "load_export",
    "load_safetensors",
    "notebook",
    "plots",
    "print",
    "progress",
    "remat",
    "save_safetensors",
    "scale_regularization_loss",
    "scaled_learning_rate",
    "scan",
    "set_strategy",
    "switch",
    "testing",
    "trackers",
    "value_and_grad",
    "while_loop",
]


#: Modules and names are loaded when they are first asked for: a launcher needs no JAX, and a step no estimator.
_MODULES = {
    "checkpoint": "checkpoint",
    "cluster_resolver": "cluster",
    "config": "config",
    "coordinator": "parameter_server.namespace",
    "data": "data",
    "dtensor": "dtensor",
    "errors": "errors",
    "estimator": "estimator",
    "exit_codes": "errors.exit_codes",
    "health": "group.health",
    "keras": "keras",
    "notebook": "tools.notebook",
    "plots": "tools.plots",
    "testing": "testing",
    "trackers": "tools.trackers",
}
_NAMES = {
    "checkpoint": (
        "Checkpoint",
        "CheckpointManager",
        "PreemptionCheckpointHandler",
        "TerminationConfig",
        "latest_checkpoint",
    ),
    "collectives": (
        "CommunicationImplementation",
        "CommunicationOptions",
        "CrossDeviceOps",
        "HierarchicalCopyAllReduce",
        "Int8",
        "NcclAllReduce",
        "PowerSGD",
        "ReductionToOneDevice",
        "RingAllReduce",
    ),
    "contracts.reduce_op": ("ReduceOp",),
    "data": ("AutoShardPolicy", "InputContext", "InputOptions", "ValueContext"),
    "errors": ("ReplicaDivergenceError", "ReplicaxError"),
    "exporting": ("LoadedFunction", "export", "load_export"),
    "islands": ("DiLoCoStrategy", "LocalSGDStrategy"),
    "parameter_server": (
        "FixedShardsPartitioner",
        "MaxSizePartitioner",
        "MinSizePartitioner",
        "ParameterServerStrategy",
        "Partitioner",
        "Server",
        "ShardedVariable",
    ),
    "program": ("TensorSpec", "function", "grad", "value_and_grad"),
    "program.gradients.accumulation": ("accumulate_gradients",),
    "program.gradients.rematerialized": ("remat",),
    "program.loops.loops": ("cond", "fori_loop", "scan", "switch", "while_loop"),
    "strategies": (
        "CentralStorageStrategy",
        "Elastic",
        "GradientMemory",
        "MirroredStrategy",
        "MultiWorkerMirroredStrategy",
        "OneDeviceStrategy",
        "ReplicaContext",
        "Strategy",
        "TPUStrategy",
        "get_replica_context",
        "get_strategy",
        "has_strategy",
        "in_cross_replica_context",
        "set_strategy",
    ),
    "strategies.averages": ("ExponentialMovingAverage",),
    "strategies.fully_sharded": ("FullyShardedStrategy",),
    "strategies.layout": ("LayoutStrategy",),
    "strategies.losses": ("compute_average_loss", "scale_regularization_loss"),
    "tools.reporting.printing": ("print",),
    "tools.reporting.progress": ("progress",),
    "tools.tuning": ("BatchSize", "LearningRates", "find_batch_size", "find_learning_rate", "scaled_learning_rate"),
    "values": ("DistributedValues", "Mirrored", "PerReplica"),
    "values.aggregation": ("VariableAggregation", "VariableSynchronization"),
    "values.scattering": ("IndexedSlices",),
    "variables": ("Module", "Variable"),
    "weights": ("load_safetensors", "save_safetensors"),
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}

if TYPE_CHECKING:
    import replicax.testing as testing
    from replicax import (
        checkpoint,
        cluster as cluster_resolver,
        config,
        data,
        dtensor,
        errors,
        estimator,
        keras as keras,
    )
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
    from replicax.contracts.reduce_op import ReduceOp
    from replicax.data import (
        AutoShardPolicy,
        FileSource as FileSource,
        InputContext,
        InputOptions,
        ValueContext,
    )
    from replicax.errors import ReplicaDivergenceError, ReplicaxError, exit_codes as exit_codes
    from replicax.exporting import LoadedFunction, export, load_export, load_export as load  # noqa: F401
    from replicax.group import health
    from replicax.islands import DiLoCoStrategy, LocalSGDStrategy
    from replicax.keras.sidecar import SidecarEvaluator as SidecarEvaluator
    from replicax.parameter_server import (
        FixedShardsPartitioner,
        MaxSizePartitioner,
        MinSizePartitioner,
        ParameterServerStrategy,
        Partitioner,
        Server,
        ShardedVariable,
        namespace as coordinator,
    )
    from replicax.program import TensorSpec, grad, value_and_grad
    from replicax.program.function import function
    from replicax.program.gradients.accumulation import accumulate_gradients
    from replicax.program.gradients.rematerialized import remat
    from replicax.program.loops.loops import cond, fori_loop, scan, switch, while_loop
    from replicax.strategies import (
        CentralStorageStrategy,
        Elastic,
        GradientMemory,
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
    from replicax.strategies.averages import ExponentialMovingAverage
    from replicax.strategies.fully_sharded import FullyShardedStrategy
    from replicax.strategies.layout import LayoutStrategy
    from replicax.strategies.losses import compute_average_loss, scale_regularization_loss
    from replicax.tools import notebook, plots, trackers
    from replicax.tools.reporting.printing import print
    from replicax.tools.reporting.progress import progress
    from replicax.tools.tuning import (
        BatchSize,
        LearningRates,
        find_batch_size,
        find_learning_rate,
        scaled_learning_rate,
    )
    from replicax.values import DistributedValues, Mirrored, PerReplica
    from replicax.values.aggregation import VariableAggregation, VariableSynchronization
    from replicax.values.scattering import IndexedSlices
    from replicax.variables import Module, Variable
    from replicax.weights import load_safetensors, save_safetensors
else:  # For a type checker every name would exist.

    def __getattr__(name: str) -> object:
        """Loads modules and names when they are first asked for. Knows old names and TensorFlow's."""
        if name in _MODULES:
            value = globals()[name] = importlib.import_module(f"replicax.{_MODULES[name]}")
            return value
        if name in _MODULE_OF:
            module = importlib.import_module(f"replicax.{_MODULE_OF[name]}")
            value = globals()[name] = getattr(module, name)
            return value
        if name in RENAMED:
            return renamed(sys.modules[__name__], name)
        raise not_found(__name__, name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *_MODULES, *_MODULE_OF})
