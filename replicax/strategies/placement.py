"""Where values live: on all devices of a strategy, or on the first few for a step whose batch does not divide."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, Sharding

import replicax.health as health
from replicax.compat.jax import strongly_typed
from replicax.program.handover import store_values
from replicax.program.results import marked_like
from replicax.runtime.mesh import REPLICA_AXIS, mirrored_sharding, stacked_sharding
from replicax.runtime.transfer import from_chief, is_in_host_memory, put, put_all, spans_processes
from replicax.strategies.agreement import FIRST_VALUES, Agreement, described
from replicax.typing import Leaf, PyTree
from replicax.values import is_per_replica
from replicax.variable_access import VariableLike, array_of, is_per_replica_variable, name_of, set_array, shape_of


def whole(variable: VariableLike) -> PartitionSpec:
    """The layout of a mirrored variable: every device holds all of it."""
    del variable
    return PartitionSpec()


class Placement:
    """Places values on the devices of a strategy.

    A *mirrored* value is whole on every device. A *stacked* one has a row for each replica, on its device. A step may
    run on the first few replicas only: on a sub-mesh.

    Args:
        devices: The devices, replicas first: shape `(replicas,)`, or `(replicas, ...)` where several devices make one.
        axis_names: Names of the dimensions; the first is `"replica"`.
        layout: Returns how a variable is cut over the mesh between steps.
        workers: What the processes are called in messages, in their order.
    """

    def __init__(
        self,
        devices: Sequence[jax.Device] | np.ndarray,
        axis_names: Sequence[str] = (REPLICA_AXIS,),
        layout: Callable[[VariableLike], PartitionSpec] = whole,
        workers: Sequence[str] = (),
    ):
        self._worker_names = tuple(workers)
        self._devices = np.array(devices, dtype=object)
        self._axis_names = tuple(axis_names)
        self._layout = layout
        self.replicas = len(self._devices)
        #: One device for each replica.
        self.devices: tuple[jax.Device, ...] = tuple(
            row.flat[0] if self._devices.ndim > 1 else row for row in self._devices
        )
        self._meshes: dict[int, Mesh] = {}
        #: Whether some of the devices belong to other processes.
        self.spans_processes = spans_processes(self.sharding(stacked=False))

    @functools.cached_property
    def _agreement(self) -> Agreement:
        return Agreement(self.workers)

    @property
    def is_chief(self) -> bool:
        """Whether this process is the first of them, which writes for all."""
        return jax.process_index() == 0

    @property
    def workers(self) -> tuple[str, ...]:
        """What the processes are called in messages, in their order."""
        return self._worker_names or tuple(f"process {process}" for process in range(jax.process_count()))

    @functools.cached_property
    def local_replicas(self) -> tuple[int, ...]:
        """Numbers of the replicas whose (first) device belongs to this process."""
        return tuple(i for i, device in enumerate(self.devices) if device.process_index == jax.process_index())

    @property
    def home(self) -> Sharding:
        """Where a value is that is no replica's own: on all devices."""
        return self.sharding(stacked=False)

    def mesh_for(self, replicas: int) -> Mesh:
        """Returns the mesh of the first `replicas` replicas."""
        if replicas not in self._meshes:
            types = (AxisType.Auto,) * len(self._axis_names)
            self._meshes[replicas] = Mesh(self._devices[:replicas], self._axis_names, axis_types=types)
        return self._meshes[replicas]

    def sharding(self, stacked: bool, replicas: int | None = None) -> NamedSharding:
        """Returns where a mirrored (or stacked) value lives in a step on `replicas` replicas (default: all)."""
        mesh = self.mesh_for(replicas or self.replicas)
        return stacked_sharding(mesh) if stacked else mirrored_sharding(mesh)

    def variable_sharding(self, variable: VariableLike) -> Sharding:
        """Returns where a variable's value lives between steps."""
        if is_per_replica_variable(variable):
            return self.sharding(stacked=True)
        return NamedSharding(self.mesh_for(self.replicas), self._layout(variable))

    def program_sharding(self, variable: VariableLike, replicas: int) -> Sharding:
        """Returns where a variable's value is at the beginning and end of a program on `replicas` replicas."""
        if replicas == self.replicas:
            return self.variable_sharding(variable)
        return self.sharding(stacked=False, replicas=replicas)

    def replica_sharding(self, variable: VariableLike, replicas: int) -> Sharding:
        """Returns where replicas, `replicas` in number, have a variable's value."""
        return self.program_sharding(variable, replicas)

    def place(self, value: jax.typing.ArrayLike, stacked: bool = False, replicas: int | None = None) -> jax.Array:
        """Returns a copy of `value` on the devices; it shares no buffer with `value`."""
        return placed_copy(value, self.sharding(stacked, replicas))

    def assembled(self, rows: Sequence[jax.Array]) -> jax.Array:
        """Returns the stacked value of this process's `rows`, arrays of shape `(1, ...)` on their replicas' devices."""
        if self._devices.ndim > 1:
            return self.place(np.concatenate(rows), stacked=True)
        shape = (self.replicas, *rows[0].shape[1:])
        return jax.make_array_from_single_device_arrays(shape, self.sharding(stacked=True), list(rows))

    def load(
        self, variables: Sequence[VariableLike], replicas: int, homes: Sequence[Sharding | None] | None = None
    ) -> list[jax.Array]:
        """Returns the values of variables as a program on `replicas` replicas needs them.

        On a sub-mesh a mirrored variable is a view of the copies of the first devices. Any other comes whole, to each
        device: also the components of replicas that sit the step out count when it is read. A value that is not on the
        mesh yet is a first value: where the mesh spans processes, that of process 0.

        Args:
            variables: The variables.
            replicas: How many replicas the program runs on.
            homes: Where a program on all replicas wants the values; by default where variables live between steps.
        """
        if homes is None:
            homes = [self.variable_sharding(variable) for variable in variables]
        values = [array_of(variable) for variable in variables]
        # One that JAX may still move is not there either: programs tell such values from others.
        new = [
            (i, home)
            for i, (value, home) in enumerate(zip(values, homes, strict=True))
            if home is not None and (value.sharding != home or not value.committed)
        ]
        if new:
            names = [name_of(variables[i]) for i, _ in new]
            agreed = self.agreed([values[i] for i, _ in new], names)
            for (i, _), value in zip(new, placed_copies(agreed, [home for _, home in new]), strict=True):
                values[i] = value
        if replicas == self.replicas:
            return values
        return [self._shrunk_value(value, replicas) for value in values]

    def _shrunk_value(self, value: jax.Array, replicas: int) -> jax.Array:
        if not value.sharding.is_fully_replicated and not self.spans_processes:
            return self.place(value, replicas=replicas)
        # Between processes there is no way but over all devices: only they can run a program together.
        return self._first(put(value, self.sharding(stacked=False)), replicas)

    def initialize(self, variable: VariableLike, value: jax.typing.ArrayLike) -> None:
        """Gives a variable a copy of `value`, which may be anybody's; of process 0's if there are several."""
        (agreed,) = self.agreed([value], [name_of(variable)])
        set_array(variable, placed_copy(agreed, self.variable_sharding(variable)))

    def agreed(
        self, values: Sequence[jax.typing.ArrayLike], names: Sequence[str], what: str = FIRST_VALUES
    ) -> Sequence[jax.typing.ArrayLike]:
        """Returns values that are the same in every process: those that are not global yet become process 0's.

        All processes call this together, with the same values not global; without such values nobody waits.

        Args:
            values: Arrays and numbers.
            names: What each is called.
            what: What they are, for messages.

        Raises:
            ValuesMismatchError: The processes have values of other names, shapes or dtypes, or in another order.
        """
        own = [i for i, value in enumerate(values) if _is_own(value)] if self.spans_processes else []
        if not own:
            return values
        chiefs = self._agreement.chiefs(what, [names[i] for i in own], [values[i] for i in own])
        agreed = list(values)
        for i, value in zip(own, chiefs, strict=True):
            agreed[i] = value
        return agreed

    def make_alike(self, variables: Sequence[VariableLike]) -> None:
        """Gives variables that some process has assigned a value of its own process 0's; all call this together.

        Raises:
            ValuesMismatchError: The processes have other variables.
        """
        own = bytes(_is_own(array_of(variable)) for variable in variables)
        what = "variables to be kept alike"
        descriptions = [described(name_of(variable), array_of(variable)) for variable in variables]
        anyones = self._agreement.alike(what, descriptions, own)
        changed = [v for i, v in enumerate(variables) if any(flags[i] for flags in anyones)]
        names = [name_of(variable) for variable in changed]
        chiefs = self._agreement.chiefs(what, names, [array_of(variable) for variable in changed])
        store_values(changed, placed_copies(chiefs, [self.variable_sharding(variable) for variable in changed]))

    def stored(self, variables: Sequence[VariableLike], values: Sequence[jax.Array]) -> list[jax.Array]:
        """Returns what a program on any number of replicas has computed for variables as they keep it."""
        return [
            put(value, self.variable_sharding(variable))
            for variable, value in zip(variables, self.spread(values), strict=True)
        ]

    def spread(self, values: Sequence[jax.Array]) -> Sequence[jax.Array]:
        """Returns results of a program on a sub-mesh in every process, also in those that had no part in it."""
        if not self.spans_processes:
            return values
        with health.phase(health.WAIT, "results of a partial batch"):
            return [self.place(value) for value in from_chief(values)]

    def takes_part(self, replicas: int) -> bool:
        """Returns whether a device of the first `replicas` replicas belongs to this process."""
        return bool(self.sharding(stacked=False, replicas=replicas).addressable_devices)

    def result_sharding(self, replicas: int) -> NamedSharding | None:
        """Returns how a program on so many replicas returns results that every process reads; None leaves it to XLA.

        Where the mesh spans processes they are whole on each device. (Of a sub-mesh, process 0 sends them to those that
        have no part in it.)
        """
        return self.sharding(stacked=False, replicas=replicas) if self.spans_processes else None

    def shrunk(self, array: jax.Array, replicas: int) -> jax.Array:
        """Returns an argument that is mirrored on all devices as a program on `replicas` replicas needs it."""
        if isinstance(array, jax.Array) and array.sharding == self.sharding(stacked=False):
            return self._first(array, replicas)
        return array

    def _first(self, mirrored: jax.Array, replicas: int) -> jax.Array:
        shards = {shard.device: shard.data for shard in mirrored.addressable_shards}
        held = [shards[device] for device in self._devices[:replicas].flat if device in shards]
        sharding = self.sharding(stacked=False, replicas=replicas)
        return jax.make_array_from_single_device_arrays(mirrored.shape, sharding, held, dtype=mirrored.dtype)

    def rejoined(self, tree: PyTree, replicas: int) -> PyTree:
        """Moves the mirrored results of a program on `replicas` replicas to all devices."""
        if replicas == self.replicas:
            return tree
        return jax.tree_util.tree_map(self._rejoined, tree, is_leaf=is_per_replica)

    def mirrored(self, value: Leaf, replicas: int) -> Leaf:
        """Returns a result of `replicas` replicas as every process can read it; in one process it is left as it is."""
        if not self.spans_processes or not isinstance(value, jax.Array):
            return value
        if isinstance(value, jax.core.Tracer):
            return jax.lax.with_sharding_constraint(value, self.sharding(stacked=False, replicas=replicas))
        return value if value.is_fully_addressable else put(value, self.sharding(stacked=False))

    def _rejoined(self, leaf: Leaf) -> Leaf:
        if is_per_replica(leaf) or not isinstance(leaf, jax.Array) or isinstance(leaf, jax.core.Tracer):
            return leaf
        return marked_like(self.place(leaf), leaf) if leaf.sharding.is_fully_replicated else leaf


def _is_own(value: jax.typing.ArrayLike) -> bool:
    """Returns whether a value is of this process alone."""
    return not isinstance(value, jax.Array) or value.is_fully_addressable


def placed_copy(value: jax.typing.ArrayLike, sharding: Sharding) -> jax.Array:
    """Returns a copy of `value` with a sharding; it shares no buffer with `value`."""
    (copy,) = placed_copies([value], [sharding])
    return copy


def placed_copies(values: Sequence[jax.typing.ArrayLike], shardings: Sequence[Sharding]) -> list[jax.Array]:
    """Returns copies of `values` with shardings; they share no buffers with `values`."""
    # `device_put` reuses the buffer of a device that has the value already, even with may_alias=False.
    return put_all(list(map(_copied, values)), shardings)


def _copied(value: jax.typing.ArrayLike) -> jax.Array | np.ndarray:
    if not isinstance(value, jax.Array):
        return strongly_typed(value)
    # JAX copies by a program that XLA compiles for each shape. A deep model has many small variables, and new ones have
    # their first values on one device: where that is the host, memory is all that there is to copy.
    return np.array(value) if is_in_host_memory(value) else jnp.copy(value)


def cut_if_large(variable: VariableLike, min_size: int, parts: int) -> PartitionSpec:
    """Returns the layout that cuts a variable of at least `min_size` elements, and leaves others whole."""
    shape = shape_of(variable)
    return largest_divisible_cut(shape, parts) if math.prod(shape) >= min_size else PartitionSpec()


def largest_divisible_cut(shape: Sequence[int], parts: int) -> PartitionSpec:
    """Returns the layout that cuts the longest dimension that `parts` divides; none if there is no such dimension.

    Example:
        >>> largest_divisible_cut((700, 512), 8)
        P(None, 'replica')
    """
    divisible = [(length, -i) for i, length in enumerate(shape) if length and length % parts == 0]
    if not divisible:
        return PartitionSpec()
    cut = -max(divisible)[1]
    return PartitionSpec(*(REPLICA_AXIS if i == cut else None for i in range(cut + 1)))
