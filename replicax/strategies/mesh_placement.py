"""Where the values of variables live: between steps, in programs, and on replicas."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

import replicax.runtime.activity as activity
from replicax.compat.jax import is_random_key
from replicax.compat.jax_tracing import beside_traces
from replicax.contracts.group import Group, current_group
from replicax.contracts.placement import FirstValueLike
from replicax.contracts.variable_access import (
    TreeLeaf,
    VariableLike,
    array_of,
    has_split_rows,
    is_per_replica_variable,
    name_of,
    set_array,
    shape_of,
)
from replicax.errors import WorkersDisagreeError
from replicax.program.storing import store_values
from replicax.runtime import clock
from replicax.runtime.mesh import REPLICA_AXIS
from replicax.runtime.numbers import BLOCK_AXIS, check_devices
from replicax.runtime.transfer import HOST_MEMORY, from_chief, placed_copies, placed_copy, put
from replicax.strategies.agreement import FIRST_VALUES, Agreement, described
from replicax.strategies.replica_devices import ReplicaDevices

if TYPE_CHECKING:  # Loaded where variables are cut, or workers come and go, only.
    from replicax.layouts import Decision
    from replicax.program.first_values import FirstValue
    from replicax.strategies.elastic_variables import Followers
    from replicax.strategies.first_values import FirstValues

_MOST_NAMED = 10  # variables that an error names


class MeshPlacement(ReplicaDevices):
    """Where the values of variables live on the devices of a strategy, and how they get there."""

    def __init__(
        self,
        devices: Sequence[jax.Device] | np.ndarray,
        axis_names: Sequence[str] = (REPLICA_AXIS,),
        decide: Callable[[VariableLike], Decision] | None = None,
        workers: Sequence[str] = (),
        lives_on_host: Callable[[VariableLike], bool] | None = None,
        followers: Followers | None = None,
    ):
        super().__init__(devices, axis_names, workers)
        # How a variable is sharded between steps, None: every device holds all of each; whether it lives in the host's
        # memory then; and the variables that follow from world to world, if workers may come and go.
        self._decide, self._lives_on_host, self._followers = decide, lives_on_host, followers

    @property
    def group(self) -> Group:
        if self._followers is not None:
            return self._followers.group
        return current_group() if self.spans_processes else super().group

    def follow(self, variables: Sequence[VariableLike]) -> None:
        if self._followers is not None:
            self._followers.add(variables)
            self._followers.place_anew(self.variable_sharding)

    @functools.cached_property
    def _agreement(self) -> Agreement:
        return Agreement(self.workers)

    @property
    def shards_variables(self) -> bool:
        return self._decide is not None

    def _layout(self, variable: VariableLike) -> PartitionSpec:
        return PartitionSpec() if self._decide is None else self._decide(variable).spec()

    def described(self, variable: VariableLike) -> str:
        sharding = self.variable_sharding(variable)
        if is_per_replica_variable(variable) or sharding.is_fully_replicated:
            return super().described(variable)
        assert isinstance(sharding, NamedSharding)
        return str(tuple(sharding.spec))

    def rule_of(self, variable: VariableLike) -> str:
        return "" if self._decide is None else self._decide(variable).why

    @property
    def home(self) -> Sharding:
        return self.sharding(stacked=False)

    def variable_sharding(self, variable: VariableLike) -> Sharding:
        if is_per_replica_variable(variable) or has_split_rows(variable):
            # Where workers come and go, every one has all components: those of a lost worker still count.
            return self.sharding(stacked=self._followers is None)
        sharding = NamedSharding(self.mesh_for(self.replicas), self._layout(variable))
        is_beside = self._lives_on_host is not None and self._lives_on_host(variable)
        return sharding.with_memory_kind(HOST_MEMORY) if is_beside else sharding

    def leaf_sharding(self, leaf: TreeLeaf) -> Sharding:
        """Returns where `replicate` puts a leaf of a pytree: by the rule for variables, and random keys whole."""
        cuts = self.shards_variables and not is_random_key(leaf.value)
        return self.variable_sharding(leaf) if cuts else self.sharding(stacked=False)

    def program_sharding(self, variable: VariableLike, replicas: int) -> Sharding:
        if replicas == self.replicas:
            return self.variable_sharding(variable)
        return self.sharding(stacked=False, replicas=replicas)

    def replica_sharding(self, variable: VariableLike, replicas: int) -> Sharding:
        return self.program_sharding(variable, replicas)

    def load(
        self, variables: Sequence[VariableLike], replicas: int, homes: Sequence[Sharding | None] | None = None
    ) -> list[jax.Array]:
        if self._followers is not None:
            self._followers.place_anew(self.variable_sharding)
        if homes is None:
            homes = [self.variable_sharding(variable) for variable in variables]
        values = [array_of(variable) for variable in variables]
        # A value that is not on the mesh yet is a first value: where the mesh spans processes, that of process 0. One
        # that JAX may still move is not there either: programs tell such values from others.
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
        # On a sub-mesh a mirrored variable is a view of the copies of the first devices. Any other comes whole, to each
        # device: also the components of replicas that sit the step out count when it is read.
        return [self._shrunk_value(value, replicas) for value in values]

    @functools.cached_property
    def _first_values(self) -> FirstValues:
        from replicax.strategies.first_values import FirstValues

        return FirstValues()

    def cuts(self, variable: VariableLike) -> bool:
        """Returns whether each device holds only a part of a variable."""
        if not self.shards_variables or is_per_replica_variable(variable):
            return False
        shape = shape_of(variable)
        return self.variable_sharding(variable).shard_shape(shape) != shape

    def first_value(self, function: Callable[[], jax.Array]) -> FirstValue | None:
        """Returns what a function would compute, if the strategy cuts variables and the function can be traced."""
        if not self.shards_variables:
            return None
        from replicax.program.first_values import traced_value

        return traced_value(function)

    def create(self, variable: VariableLike, value: FirstValueLike) -> None:
        """Gives a variable the value that is computed for it, in parts if it is cut: no device holds the whole."""
        from replicax.program.first_values import FirstValue

        assert isinstance(value, FirstValue)
        name = name_of(variable)

        # Where the mesh spans processes, each computes the shards of its own devices, from process 0's seeds and
        # arrays.
        def agreed(constants: Sequence[jax.typing.ArrayLike]) -> Sequence[jax.typing.ArrayLike]:
            return self.agreed(constants, [f"{name} (constant {i})" for i in range(len(constants))])

        # Also where a function is being traced: the variable outlives the trace.
        with beside_traces():
            made = None
            if self.cuts(variable):
                made = self._first_values.made(value, cast(NamedSharding, self.variable_sharding(variable)), agreed)
            if made is None:
                whole, *changed = value.computed()
                self.initialize(variable, whole)
            else:
                whole, changed = made
                set_array(variable, whole)
        value.note(changed)

    @clock.section(clock.FIRST_VALUES)
    def initialize(self, variable: VariableLike, value: jax.typing.ArrayLike) -> None:
        """Gives a variable a copy of `value`, or of process 0's if there are several processes."""
        if self._followers is not None:
            # A newcomer makes its variables by itself. They are made alike in the first call.
            self._followers.add([variable])
            set_array(variable, placed_copy(value, SingleDeviceSharding(jax.local_devices()[0])))
            return
        (agreed,) = self.agreed([value], [name_of(variable)])
        set_array(variable, placed_copy(agreed, self.variable_sharding(variable)))

    def agreed(
        self, values: Sequence[jax.typing.ArrayLike], names: Sequence[str], what: str = FIRST_VALUES
    ) -> Sequence[jax.typing.ArrayLike]:
        # All processes call this together, with the same values not global. Without such values none waits.
        own = [i for i, value in enumerate(values) if _is_own(value)] if self.spans_processes else []
        if not own:
            return values
        chiefs = self._agreement.chiefs(what, [names[i] for i in own], [values[i] for i in own])
        agreed = list(values)
        for i, value in zip(own, chiefs, strict=True):
            agreed[i] = value
        return agreed

    def make_alike(self, variables: Sequence[VariableLike]) -> None:
        """Gives all processes process 0's values of variables that some may have assigned; all call this together."""
        own = bytes(_is_own(array_of(variable)) for variable in variables)
        what = "variables to be kept alike"
        descriptions = [described(name_of(variable), array_of(variable)) for variable in variables]
        anyones = self._agreement.alike(what, descriptions, own)
        changed = [v for i, v in enumerate(variables) if any(flags[i] for flags in anyones)]
        names = [name_of(variable) for variable in changed]
        self._check_whole([i for i, flags in enumerate(zip(*anyones, strict=True)) if any(flags)], variables, anyones)
        values = [_own_or_empty(array_of(variable)) for variable in changed]
        chiefs = self._agreement.chiefs(what, names, values)
        store_values(changed, placed_copies(chiefs, [self.variable_sharding(variable) for variable in changed]))

    def _check_whole(self, changed: Sequence[int], variables: Sequence[VariableLike], anyones: Sequence[bytes]) -> None:
        """Checks that the first process has all of each variable that some process has assigned."""
        torn = [
            i for i in changed if not anyones[0][i] and not self.variable_sharding(variables[i]).is_fully_replicated
        ]
        if torn:
            assigned = {
                worker: [name_of(variables[i]) for i in torn if flags[i]][:_MOST_NAMED]
                for worker, flags in zip(self.workers, anyones, strict=True)
            }
            raise WorkersDisagreeError("sharded variables assigned", {w: own for w, own in assigned.items() if own})

    def stored(self, variables: Sequence[VariableLike], values: Sequence[jax.Array]) -> list[jax.Array]:
        return self.moved(values, [self.variable_sharding(variable) for variable in variables])

    def moved(self, values: Sequence[jax.Array], shardings: Sequence[Sharding]) -> list[jax.Array]:
        if self.spans_processes:
            with activity.phase(activity.WAIT, "variables of a partial batch"):
                values = from_chief(values)  # type: ignore[assignment]  # In host memory: each process takes its shards.
        return list(map(put, values, shardings))


def mesh_of_blocks(
    devices: Sequence[jax.Device], blocks: int | None
) -> tuple[Sequence[jax.Device] | np.ndarray, Sequence[str]]:
    """Returns devices as a mesh and the names of its axes: each is a replica, or all are one that works in blocks."""
    if blocks is None:
        return devices, (REPLICA_AXIS,)
    check_devices(devices, blocks)
    return np.array(devices, dtype=object).reshape(1, -1), (REPLICA_AXIS, BLOCK_AXIS)


def _own_or_empty(value: jax.Array) -> jax.Array | np.ndarray:
    """Returns a value, and for one of which this process has shards only another of its shape and dtype."""
    if _is_own(value) or value.is_fully_replicated:
        return value
    return np.broadcast_to(np.zeros((), value.dtype), value.shape)


def _is_own(value: jax.typing.ArrayLike) -> bool:
    """Returns whether a value is of this process alone."""
    return not isinstance(value, jax.Array) or value.is_fully_addressable
