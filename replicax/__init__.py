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
upper_rooms.register(upper_rooms.FIXED_GROUP, lambda: importlib.import_module("replicax.group.fixed_group").FixedGroup)
upper_rooms.register(upper_rooms.PLANNING, lambda: importlib.import_module("replicax.planning.planning").plan_training)
upper_rooms.register(
    upper_rooms.OUT_OF_MEMORY, lambda: importlib.import_module("replicax.planning.out_of_memory").out_of_memory
)
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
    "certify",
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
    "ledger",
    "load_export",
    "notebook",
    "plan",
    "plots",
    "probe",
    "progress",
    "remat",
    "replay",
    "scale_regularization_loss",
    "testing",
    "trackers",
    "tuning",
    "value_and_grad",
    "weights",
]


#: Modules and names are loaded when they are first asked for: a launcher needs no JAX, and a step no estimator.
_MODULES = {
    "checkpoint": "checkpoint",
    "cluster_resolver": "cluster",
    "collectives": "collectives",
    "config": "config",
    "coordinator": "parameter_server.namespace",
    "data": "data",
    "dtensor": "dtensor",
    "errors": "errors",
    "estimator": "estimator",
    "exit_codes": "errors.exit_codes",
    "exporting": "exporting",
    "health": "group.health",
    "keras": "keras",
    "lax": "program.loops.loops",
    "ledger": "tools.ledger",
    "notebook": "tools.notebook",
    "plots": "tools.plots",
    "testing": "testing",
    "trackers": "tools.trackers",
    "tuning": "tools.tuning",
    "weights": "weights",
}
#: The other names, by the modules that have them. Those not in `__all__` stand here as `tf.distribute` has them.
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
        "NcclAllReduce",
        "ReductionToOneDevice",
        "RingAllReduce",
    ),
    "contracts.reduce_op": ("ReduceOp",),
    "data": ("AutoShardPolicy", "InputContext", "InputOptions", "ValueContext"),
    "errors": ("ReplicaDivergenceError", "ReplicaxError"),
    "exporting": ("export", "load_export"),
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
    "planning": ("plan",),
    "program": ("TensorSpec", "function", "grad", "value_and_grad"),
    "program.gradients.accumulation": ("accumulate_gradients",),
    "program.gradients.rematerialized": ("remat",),
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
    "tools.certifying": ("certify", "replay"),
    "tools.certifying.probing": ("probe",),
    "tools.reporting.printing": ("print",),
    "tools.reporting.progress": ("progress",),
    "values": ("DistributedValues", "Mirrored", "PerReplica"),
    "values.aggregation": ("VariableAggregation", "VariableSynchronization"),
    "values.scattering": ("IndexedSlices",),
    "variables": ("Module", "Variable"),
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}

if TYPE_CHECKING:
    import replicax.testing as testing
    from replicax import (
        checkpoint,
        cluster as cluster_resolver,
        collectives,
        config,
        data,
        dtensor,
        errors,
        estimator,
        exporting,
        keras,
        weights,
    )
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
    from replicax.errors import ReplicaDivergenceError, ReplicaxError, exit_codes as exit_codes
    from replicax.exporting import export, load_export, load_export as load  # noqa: F401
    from replicax.group import health
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
    from replicax.program.function import function
    from replicax.program.gradients.accumulation import accumulate_gradients
    from replicax.program.gradients.autodiff import grad, value_and_grad
    from replicax.program.gradients.rematerialized import remat
    from replicax.program.loops import loops as lax
    from replicax.program.tensor_spec import TensorSpec as TensorSpec
    from replicax.strategies import (
        CentralStorageStrategy,
        Elastic,
        GradientMemory as GradientMemory,
        MirroredStrategy,
        MultiWorkerMirroredStrategy,
        OneDeviceStrategy,
        ReplicaContext as ReplicaContext,
        Strategy,
        TPUStrategy,
        get_replica_context,
        get_strategy,
        has_strategy as has_strategy,
        in_cross_replica_context as in_cross_replica_context,
        set_strategy as set_strategy,
    )
    from replicax.strategies.averages import ExponentialMovingAverage
    from replicax.strategies.fully_sharded import FullyShardedStrategy
    from replicax.strategies.layout import LayoutStrategy
    from replicax.strategies.losses import compute_average_loss, scale_regularization_loss
    from replicax.tools import ledger, notebook, plots, trackers, tuning
    from replicax.tools.certifying import certify, replay
    from replicax.tools.certifying.probing import probe
    from replicax.tools.reporting.printing import print as print
    from replicax.tools.reporting.progress import progress
    from replicax.values import DistributedValues as DistributedValues, Mirrored as Mirrored, PerReplica
    from replicax.values.aggregation import (
        VariableAggregation as VariableAggregation,
        VariableSynchronization as VariableSynchronization,
    )
    from replicax.values.scattering import IndexedSlices as IndexedSlices
    from replicax.variables import Module, Variable
else:  # For a type checker every name would exist.

    def __getattr__(name: str) -> object:
        """Loads modules and names when they are first asked for. Knows old names and TensorFlow's."""
        if place := _MODULES.get(name) or _MODULE_OF.get(name):
            module = importlib.import_module(f"replicax.{place}")
            value = globals()[name] = module if name in _MODULES else getattr(module, name)
            return value
        if name in RENAMED:
            return renamed(sys.modules[__name__], name)
        raise not_found(__name__, name)

    def __dir__() -> list[str]:
        return sorted([*__all__, "print"])
