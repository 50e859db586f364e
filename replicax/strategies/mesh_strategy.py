"""The common part of strategies that run one program over a mesh of local devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, Sharding

import replicax.context as context
from replicax.cluster import ClusterResolver
from replicax.collectives import CommunicationOptions, CrossDeviceOps
from replicax.collectives.choose import choose_cross_device_ops
from replicax.collectives.compression import is_of_gradients
from replicax.collectives.gradient_sums import sums_together
from replicax.compat.jax_tracing import constants_are_traced, prepare_tracing_anew
from replicax.compat.keras import as_tensor_of
from replicax.contracts.strategy import PER_REPLICA, PER_ROW
from replicax.contracts.variable_access import TreeLeaf, VariableLike, dtype_of, shape_of
from replicax.data import (
    DistributedDataset,
    DistributedDatasetFromFunction,
    InputContext,
    InputOptions,
    InputWorkers,
    ValueContext,
)
from replicax.data.receivers import Receivers
from replicax.errors import ArgumentError, ContextError, ReplicaShapeError
from replicax.program.call_checks import check_function
from replicax.program.function import ProgramCache, WeakProgramCaches
from replicax.program.kept_layouts import layout_in
from replicax.program.pytrees import is_number_like
from replicax.program.replicas.outer_program import enclosing_program, hold_to_strategy
from replicax.program.replicas.per_replica_arguments import without_per_replica
from replicax.program.replicas.replica import ReplicaCall
from replicax.runtime.calls import together
from replicax.runtime.devices import chosen_devices, device_name, memory_limit
from replicax.runtime.mesh import mirrored_sharding
from replicax.runtime.transfer import host_copy, placed_copies, put
from replicax.strategies.base import Strategy
from replicax.strategies.explaining import leaf_name
from replicax.strategies.gradient_memory import GradientMemory
from replicax.strategies.mesh_placement import MeshPlacement
from replicax.strategies.reductions import Combine, Components, compiled, one_per_replica, value_of, values_of
from replicax.strategies.replica_context import ReplicaContext
from replicax.strategies.sharded_update import update_layout
from replicax.strategies.values_from_function import values_from_function
from replicax.strategies.workers import ALONE, Workers, is_default, patience
from replicax.typing import Leaf, PyTree, PyTreeFunction
from replicax.values import Mirrored, PerReplica, is_per_replica
from replicax.values.containers import opened, settings_among


class MeshStrategy(Strategy):
    """Replicas on local devices, all running the same program in step.

    Attributes:
        gradient_memory: What gradient compression keeps from step to step; empty without.
    """

    #: Whether each replica updates a shard of each variable with its shard of the optimizer's state.
    shard_update = False

    placement: MeshPlacement
    _joined = ALONE  # the workers

    def __init__(
        self,
        placement: MeshPlacement,
        cross_device_ops: CrossDeviceOps | None = None,
        communication_options: CommunicationOptions | None = None,
    ):
        self.communication_options = self._checked_options(communication_options)
        if cross_device_ops is None:
            cross_device_ops = choose_cross_device_ops(self.communication_options)
        elif not isinstance(cross_device_ops, CrossDeviceOps):
            raise ArgumentError(f"`cross_device_ops` must be an rx.CrossDeviceOps, got {cross_device_ops!r}.")
        self._ops = cross_device_ops
        self._set_placement(placement)
        compression = self.communication_options.compression
        self.gradient_memory = GradientMemory(self, compression if is_of_gradients(compression) else None)
        self._programs = WeakProgramCaches[ProgramCache]()
        prepare_tracing_anew()

    def _set_placement(self, placement: MeshPlacement) -> None:
        """Runs programs on the devices of `placement` from now on."""
        self.placement = placement
        self.mesh = placement.mesh_for(placement.replicas)
        self.cross_device_ops = self._ops.for_devices(self.devices)
        self.sum_together = sums_together(self.cross_device_ops, self.communication_options)

    def _checked_options(self, options: CommunicationOptions | None) -> CommunicationOptions:
        """Returns the options of all calls, and refuses what could have no effect."""
        if options is None:
            return CommunicationOptions()
        if not isinstance(options, CommunicationOptions):
            raise ArgumentError(f"`communication_options` must be an rx.CommunicationOptions, got {options!r:.100}.")
        if options.timeout_seconds is not None and not self.waits_for_workers:
            raise ArgumentError(
                f"timeout_seconds={options.timeout_seconds!r} has no meaning for {type(self).__name__}: its devices "
                "belong to this process, which waits for no other. Leave it out."
            )
        return options

    def _choose_devices(
        self,
        devices: int | Sequence[str | jax.Device] | None,
        options: CommunicationOptions | None,
        cluster_resolver: ClusterResolver | None,
        start_timeout: float,
        stall_timeout: float | None,
    ) -> list[jax.Device]:
        """Returns the devices that a user has chosen; by default those of all workers, for whom it waits."""
        self.waits_for_workers = is_default(devices)
        stall_timeout = patience(stall_timeout, self._checked_options(options).timeout_seconds)
        if self.waits_for_workers:
            self._set_workers(Workers.joined(cluster_resolver, start_timeout, stall_timeout))
            return self._joined.devices() if self.num_workers > 1 else chosen_devices(None)
        found = chosen_devices(devices)
        self._set_workers(Workers.of(found, cluster_resolver, start_timeout, stall_timeout))
        return found

    def _set_workers(self, workers: Workers) -> None:
        self._joined = workers
        self.cluster_resolver, self.cluster, self.workers = workers

    @property
    def num_workers(self) -> int:
        return len(self._joined.names)

    @property
    def worker_index(self) -> int:
        return self.placement.group.world.index

    @property
    def is_chief(self) -> bool:
        """Whether this process is the one that writes logs and the like; the next one is, if the chief is lost."""
        return self.placement.group.is_chief

    @property
    def devices(self) -> tuple[jax.Device, ...]:
        return self.placement.devices

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of replicas: of devices, unless several of them make one replica."""
        return self.placement.replicas

    def optimizer_sharding(self, variable: VariableLike) -> Sharding | None:
        if not self.shard_update:
            return super().optimizer_sharding(variable)
        replicas = self.num_replicas_in_sync
        return NamedSharding(self.placement.mesh_for(replicas), update_layout(variable, replicas))

    def creates(self, variable: VariableLike, initializer: Callable[..., jax.Array]) -> bool:
        """Gives a new Keras variable that is cut its first value, on all devices, and returns whether it did."""
        if not self.placement.cuts(variable) or constants_are_traced():
            return False
        shape, dtype = shape_of(variable), dtype_of(variable)

        def computed() -> jax.Array:
            return as_tensor_of(variable, initializer(shape, dtype=dtype), None)

        stands = self.placement.first_value(computed)
        value = computed() if stands is None else stands
        if value.shape != shape:
            return False  # Keras takes the shape of what an initializer returns.
        if isinstance(value, jax.Array):
            self.placement.initialize(variable, value)
        else:
            self.placement.create(variable, value)
        return True

    # Running.

    def _run(
        self, fn: PyTreeFunction, args: tuple[PyTree, ...], kwargs: dict[str, PyTree], donate: tuple[int, ...]
    ) -> PyTree:
        return self._on_replicas(fn, args, kwargs, donate, in_replica_context=True)

    def _update(
        self, variable: VariableLike, fn: PyTreeFunction, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]
    ) -> PyTree:
        current = context.current()
        if current.manual_replicas is not None:
            # Inside a replica function (or merge_call) each replica holds its copy already.
            with context.entered(replica=None):
                own_args, own_kwargs = without_per_replica((args, kwargs))
                return fn(variable, *own_args, **own_kwargs)
        self._check_cross_replica("strategy.update")
        return self._on_replicas(fn, (variable, *args), kwargs, (), in_replica_context=False)

    def _on_replicas(
        self,
        fn: PyTreeFunction,
        args: tuple[PyTree, ...],
        kwargs: dict[str, PyTree],
        donate: tuple[int, ...],
        in_replica_context: bool,
    ) -> PyTree:
        here = context.current()
        if here.manual_replicas is not None:
            raise ContextError(
                "strategy.run was called inside merge_call or update, which run on the replicas already."
            )
        if here.frame is not None or context.runs_eagerly():
            check_function("`fn`", fn)
            if enclosing_program() is not None:
                return self._traced(ReplicaCall(self, fn, (args, kwargs), in_replica_context))
            if here.frame is not None:
                raise ContextError(
                    "Differentiating strategy.run needs a program around it: decorate it with @rx.function."
                )
            return ReplicaCall(self, fn, (args, kwargs), in_replica_context).eager()
        make = lambda get_fn: self._program_cache(get_fn, donate, in_replica_context)  # noqa: E731
        return self._programs.get(fn, (donate, in_replica_context), make)(args, kwargs)

    def _program_cache(
        self, get_fn: Callable[[], PyTreeFunction], donate: tuple[int, ...], in_replica_context: bool
    ) -> ProgramCache:
        def get_program() -> PyTreeFunction:
            fn = get_fn()

            def program(*args: PyTree, **kwargs: PyTree) -> PyTree:
                return self._traced(ReplicaCall(self, fn, (args, kwargs), in_replica_context))

            program.__name__ = getattr(fn, "__name__", "program")
            return program

        return ProgramCache(get_program, donate, get_users=get_fn)

    def _traced(self, call: ReplicaCall) -> PyTree:
        result = call.traced()
        self._check_traced()
        return result

    def _check_traced(self) -> None:
        """Checks the strategy's settings when the variables of a program are known, before it runs."""

    def replica_context(self, replicas: int, batch_rows: frozenset[int] = frozenset()) -> ReplicaContext:
        return ReplicaContext(self, replicas, batch_rows)

    def merged_options(self, options: CommunicationOptions | None) -> CommunicationOptions:
        """Returns the strategy's communication options, overridden by those of one call.

        Raises:
            ArgumentError: They are no options, or have a `timeout_seconds`.
        """
        merged = self.communication_options.merge(options)
        if options is not None and options.timeout_seconds is not None:
            raise ArgumentError(
                f"timeout_seconds={options.timeout_seconds!r} cannot be given to a single call: XLA's collectives have "
                "no limit of their own. Give it to the strategy: MultiWorkerMirroredStrategy(stall_timeout=...)."
            )
        return merged

    # Values and datasets.

    def _hold_program(self) -> None:
        hold_to_strategy(self)

    def _combined(self, each: Components, combine: Combine) -> jax.Array:
        array = getattr(each, "stacked", None)
        if self.placement.group.may_change and not isinstance(array, jax.core.Tracer):
            return self._combined_again(each, combine)
        if array is None or isinstance(array, jax.core.Tracer) or not self.placement.spans_processes:
            return self._combined_here(each, combine)
        everywhere = len(array.sharding.device_set) == self.placement.mesh_for(self.placement.replicas).size
        what = f"{combine}, {array.dtype}{array.shape}"
        with together(type(combine).__name__.lower(), what) as call:
            combined = self._combined_here if everywhere else self._combined_elsewhere
            result = combined(each, combine)
            call.sent(result)
            return result

    def _combined_again(self, each: Components, combine: Combine) -> jax.Array:
        """Combines a value where workers come and go: results of steps are whole on each, and only batches are not."""
        group = self.placement.group

        def run() -> jax.Array:
            present = group.renewed(each)
            size = self.placement.mesh_for(self.placement.replicas).size
            everywhere = len(present.stacked.sharding.device_set) == size
            combined = self._combined_here if everywhere else self._combined_elsewhere
            return jnp.asarray(host_copy(combined(present, combine)))

        array = getattr(each, "stacked", None)
        if array is None or not isinstance(array, jax.Array) or array.is_fully_addressable:
            return combine(each)
        return group.attempt(
            lambda: group.executed(run, lambda found: [host_copy(found)], lambda found: jnp.asarray(found[0]))
        )

    def _combined_here(self, each: Components, combine: Combine) -> jax.Array:
        replicas = each.num_replicas
        result: jax.Array = self.placement.mirrored(self.placement.rejoined(combine(each), replicas), replicas)
        return result

    def _combined_elsewhere(self, each: Components, combine: Combine) -> jax.Array:
        """Combines a partial batch in the processes that have rows of it; process 0 is one, and tells the others."""
        replicas = each.num_replicas
        if self.placement.takes_part(replicas):
            result = compiled(each, combine, self.placement.sharding(stacked=False, replicas=replicas))
        else:
            expected = jax.eval_shape(lambda each: combine(each), each)
            result = cast(jax.Array, np.zeros(expected.shape, expected.dtype))
        known: jax.Array
        (known,) = self.placement.spread([result])
        return known

    def replicate(self, tree: PyTree) -> PyTree:
        """Returns a copy of the arrays and numbers in `tree` on the devices of the strategy.

        Every device holds them in full; under a strategy that shards variables each of them is cut by its rule, with
        the keys that lead to it as its name (`"0/params/Dense_0/kernel"`). A step gathers such an array where it uses
        it, and what it returns in its place is cut alike. Random keys stay whole. `explain(tree)` tells.

        On several workers it is the chief's. All of them call this together, with the same structure, shapes and
        dtypes.

        Raises:
            ValuesMismatchError: They differ.
            LayoutError: A pattern of a user's layouts does not fit the array that it matches.
        """
        tree = opened(tree)
        paths, treedef = jax.tree_util.tree_flatten_with_path(tree)
        leaves = [leaf for _, leaf in paths]
        settings = settings_among(leaves, tree)
        arrays = [i for i, leaf in enumerate(leaves) if i not in settings and is_number_like(leaf)]
        names = [f"value{jax.tree_util.keystr(paths[i][0])}" for i in arrays]
        agreed = self._agreed([leaves[i] for i in arrays], names, "values given to strategy.replicate")
        named = [TreeLeaf(leaf_name(paths[i][0]), leaves[i]) for i in arrays]
        placed = placed_copies(agreed, list(map(self.placement.leaf_sharding, named)))
        for i, value in zip(arrays, placed, strict=True):
            leaves[i] = value
        return jax.tree_util.tree_unflatten(treedef, leaves)

    def _agreed(
        self, values: Sequence[jax.typing.ArrayLike], names: Sequence[str], what: str
    ) -> Sequence[jax.typing.ArrayLike]:
        """Returns the chief's values; see `MeshPlacement.agreed`."""
        group = self.placement.group
        if not group.may_change:
            return self.placement.agreed(values, names, what)

        def run() -> list[np.ndarray]:
            return [host_copy(value) for value in map(jnp.asarray, self.placement.agreed(values, names, what))]

        return group.attempt(lambda: group.executed(run, _itself, _itself))

    def local_results(self, value: PyTree) -> tuple[PyTree, ...]:
        """Returns the components of `value`, one for each replica of this process.

        An array that is sharded over the devices of several workers is gathered: all of them call this together then.
        """
        leaves, treedef = jax.tree_util.tree_flatten(opened(value), is_leaf=is_per_replica)
        found = [self._of_this_process(one_per_replica(leaf)) for leaf in leaves]
        counts = {len(each.values) for each in found if each is not None and is_per_replica(each)}
        counts = counts or {_count_here(self, each.num_replicas) for each in found if each is not None}
        if not counts and any(isinstance(leaf, Mirrored) or layout_in(leaf) for leaf in values_of(leaves)):
            counts = {len(self.placement.processes.local)}
        if not counts:
            return (values_of(value),)
        if len(counts) > 1:
            raise ReplicaShapeError(
                f"The values of one call must come from the same step, got values of {sorted(counts)} replicas. (A "
                "partial batch runs on fewer replicas than a full one.) Ask for the results of each step by itself."
            )
        (count,) = counts
        components = [_components(leaf, each, count) for leaf, each in zip(leaves, found, strict=True)]
        return tuple(jax.tree_util.tree_unflatten(treedef, row) for row in zip(*components, strict=True))

    def _of_this_process(self, each: Components | None) -> Components | None:
        """Returns a value with the components of this process, where each process has those of all."""
        whole = self.placement.group.may_change and isinstance(each, PerReplica) and each.stacked.is_fully_addressable
        if not whole or not isinstance(each, PerReplica) or each.num_replicas != self.num_replicas_in_sync:
            return each
        return PerReplica(each.stacked[np.array(self.placement.processes.local)])

    def _facts(self) -> dict[str, object]:
        facts = super()._facts()
        if len(self.devices) > 1:
            facts["cross-device op"] = type(self.cross_device_ops).__name__
            facts["sharded"] = self._what_is_sharded()
            facts["a step sends"] = "what strategy.explain(model, step=True) counts"
        if len(self._joined.names) > 1:
            facts["workers"] = f"{self.num_workers}, this is {self.worker_index}"
        if self.precision is not None:
            facts["precision"] = f"{self.precision.name}; variables in float32"
        if (limit := memory_limit(self.devices)) is not None:
            facts["memory of a device"] = f"{limit / 2**30:.1f} GiB"
        return facts

    def _what_is_sharded(self) -> str:
        return "large optimizer state (ZeRO-1)" if self.shard_update else "nothing"

    def _shown_as_worker(self) -> str:
        local = len(self.placement.sharding(stacked=False).addressable_devices)
        name = self._joined.names[self.worker_index]
        return f"{type(self).__name__}({name} of {self.num_workers}, {local} local devices)"

    def __repr__(self) -> str:
        if self.num_workers > 1:
            return self._shown_as_worker()
        names = ", ".join(device_name(device) for device in self.devices)
        return f"{type(self).__name__}([{names}])"

    # Data.

    def distribute_dataset(
        self, dataset: PyTree, options: InputOptions | None = None, *, batch_size: int | None = None
    ) -> DistributedDataset:
        return DistributedDataset(
            dataset,
            num_replicas=self.num_replicas_in_sync,
            mesh_for=self.placement.mesh_for,
            options=options,
            batch_size=batch_size,
            workers=self._input_workers(),
            advice=self.advice,
            anew=self._receivers,
        )

    def distribute_values_from_function(self, value_fn: Callable[[ValueContext], PyTree]) -> PyTree:
        """Builds a per-replica value, one call of `value_fn` for each replica of this process.

        On several workers all call this together, and know of all components' shapes and dtypes afterwards. Inside an
        `rx.function` each worker calls `value_fn` for every replica, and all trace the same.

        Raises:
            ArgumentError: `value_fn` returns pytrees of different structures.
            ReplicaShapeError: Inside an `rx.function`: it returns arrays of different shapes or dtypes.
            ValuesMismatchError: Workers return pytrees of another structure.
        """
        check_function("`value_fn`", value_fn)
        self._check_cross_replica("strategy.distribute_values_from_function")
        return values_from_function(self, self.placement, value_fn)

    def _dataset_of_report(
        self, dataset: PyTree, options: InputOptions | None, batch_size: int | None
    ) -> DistributedDataset:
        return self.distribute_dataset(dataset, options, batch_size=batch_size)

    def distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], PyTree], options: InputOptions | None = None
    ) -> DistributedDatasetFromFunction:
        """Distributes the per-replica batches of the dataset that `dataset_fn` returns."""
        return DistributedDatasetFromFunction(
            dataset_fn,
            num_replicas=self.num_replicas_in_sync,
            mesh_for=self.placement.mesh_for,
            options=options,
            workers=self._input_workers(),
            anew=self._receivers,
        )

    def _receivers(self) -> Receivers:
        """Returns the replicas that datasets feed in the present world."""
        return Receivers.of(self.num_replicas_in_sync, self.placement.mesh_for, self._input_workers())

    def _input_workers(self) -> InputWorkers | None:
        """Returns the workers that feed the replicas; None if this process feeds all of them."""
        if not self.placement.spans_processes:
            return None
        read, fed = self.placement.processes.readers_and_fed()
        return InputWorkers(jax.process_index(), self.placement.workers, read, fed=fed)


def checked_random_numbers(value: object, default: str = PER_REPLICA) -> str:
    """Returns where random numbers come from; `default` if `value` is None."""
    if value is None:
        return default
    if value not in (PER_REPLICA, PER_ROW):
        raise ArgumentError(f"`random_numbers` must be {PER_REPLICA!r} or {PER_ROW!r}, got {value!r:.100}.")
    return str(value)


def _itself(arrays: list[np.ndarray]) -> list[np.ndarray]:
    return arrays


def _count_here(strategy: MeshStrategy, replicas: int) -> int:
    """Returns how many components of an equal result are here: those of a partial step are in every process."""
    return len(strategy.placement.processes.local) if replicas == strategy.num_replicas_in_sync else replicas


def _components(leaf: Leaf, each: Components | None, number: int) -> tuple[PyTree, ...]:
    if is_per_replica(each):
        return each.values
    leaf = value_of(leaf)
    if isinstance(leaf, jax.core.Tracer) or not isinstance(leaf, jax.Array):
        return (leaf,) * number
    cut = layout_in(leaf)
    if cut is not None:
        leaf = put(leaf, mirrored_sharding(cut.mesh))
    # Copies: the shards are parts of an array that a program may be given to overwrite.
    if isinstance(leaf, Mirrored) and len(leaf.addressable_shards) >= number:
        return tuple(jax.numpy.copy(shard.data) for shard in leaf.addressable_shards)[:number]
    return tuple(jax.numpy.copy(leaf) for _ in range(number)) if each is not None else (leaf,) * number
