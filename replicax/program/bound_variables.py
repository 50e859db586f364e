"""The variables of one program: what it does with each of them, and where their values are when it runs.

A program may overwrite only buffers that nobody else can see. There is one rule, and it is applied in one place.
Between programs the values of variables are in the variables. Before a program updates some of them in place, `own`
looks who else refers to their arrays. An array that only its variable refers to is given to the program; of any other
the program gets a copy.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec, Sharding

from replicax.contracts.strategy import StrategyBase
from replicax.contracts.variable_access import VariableLike, array_of, layout_of, lives_elsewhere, name_of, set_array
from replicax.errors import LayoutError
from replicax.program.global_view import GlobalView
from replicax.program.storing import store_values
from replicax.runtime.transfer import beside_device, copy_of, put


class BoundVariables:
    """The variables that a program reads and assigns, in the order in which it takes and returns their values."""

    def __init__(
        self,
        read: Sequence[VariableLike],
        written: Sequence[VariableLike],
        strategy: StrategyBase,
        replicas: int,
        view: GlobalView | None,
        in_update: Collection[int] = (),  # ids of the variables that live where an optimizer's are updated
    ):
        self._strategy, self._replicas, self._view, self._in_update = strategy, replicas, view, in_update
        self._is_partial = replicas != strategy.num_replicas_in_sync
        assigned = {id(variable) for variable in written}
        # Read and overwritten: their buffers are given to the program. On a sub-mesh the inputs are views of buffers
        # that other replicas keep: those are not ours to give away.
        self.updated = [variable for variable in read if not self._is_partial and id(variable) in assigned]
        updated = {id(variable) for variable in self.updated}
        # JAX gives the first result of a shape the first donated buffer of that shape. In this order each variable
        # gets its own back; in any other XLA would have to copy.
        self.written = [*self.updated, *(variable for variable in written if id(variable) not in updated)]
        self.constant = [variable for variable in read if id(variable) not in updated]
        self._elsewhere = [variable for variable in read if lives_elsewhere(variable)]
        self._here = [variable for variable in self.updated if not lives_elsewhere(variable)]
        self._overwrites = not strategy.placement.group.may_change
        self._mesh = _mesh_of_layouts(read)
        # Empty where nothing places values: variables are left where they are.
        shardings = [(variable, self.sharding(variable)) for variable in read]
        self._placements = [(variable, sharding) for variable, sharding in shardings if sharding is not None]
        beside = ((id(variable), beside_device(sharding)) for variable, sharding in shardings)
        #: Where values are on the devices, by `id`, that live in the host's memory.
        self.offloaded = {key: sharding for key, sharding in beside if sharding is not None}

    def sharding(self, variable: VariableLike) -> Sharding | None:
        """Returns where a variable's value is at the beginning and the end of the program; None leaves it to JAX."""
        layout = layout_of(variable)
        if layout is not None:
            return layout
        sharding = self._sharding_by_host(variable)
        if sharding is None and self._mesh is not None:
            return _sharding_beside_layouts(array_of(variable), self._mesh)
        return sharding

    def _sharding_by_host(self, variable: VariableLike) -> Sharding | None:
        if self._view is not None:
            return self._view.sharding_of(variable)
        if id(variable) in self._in_update:
            return self._strategy.optimizer_sharding(variable)
        return self._strategy.placement.program_sharding(variable, self._replicas)

    def fetched(self) -> dict[int, jax.Array]:
        """Returns the values of the variables that live elsewhere, by `id`; the program may overwrite its own."""
        if not self._elsewhere:
            return {}
        updated = set(map(id, self.updated))
        arrays = {id(each): array_of(each) for each in self._elsewhere}
        return {key: jnp.copy(array) if key in updated else array for key, array in arrays.items()}

    def inputs(self, fetched: Mapping[int, jax.Array]) -> tuple[list[jax.Array], list[jax.Array]]:
        """Returns the values of the updated variables, which the program may overwrite, and of the constant ones."""
        if self._is_partial:
            return [], self._loaded(self._placements)
        self._place()
        if self._overwrites:
            own(self._here)
        if not fetched:
            return list(map(array_of, self.updated)), list(map(array_of, self.constant))
        return _values(self.updated, fetched), _values(self.constant, fetched)

    def _place(self) -> None:
        """Moves variables onto the mesh that are not there yet: they are new, or were assigned outside of a program."""
        new: list[tuple[VariableLike, Sharding]] = []
        for placement in self._placements:
            value, sharding = array_of(placement[0]), placement[1]
            if (value.sharding is not sharding and value.sharding != sharding) or not value.committed:
                new.append(placement)
        if new:
            # Also where a function is being traced: a variable outlives the trace.
            with jax.ensure_compile_time_eval():
                values = self._loaded(new)
            store_values([variable for variable, _ in new], values)

    def _loaded(self, placements: Sequence[tuple[VariableLike, Sharding]]) -> list[jax.Array]:
        """Returns the values of variables at their shardings, those that the host places all at once."""
        hosts = [variable for variable, _ in placements if self._is_placed_by_host(variable)]
        homes = None if self._is_partial else list(map(self._sharding_by_host, hosts))
        values = iter(self._strategy.placement.load(hosts, self._replicas, homes))
        return [
            next(values) if self._is_placed_by_host(variable) else put(array_of(variable), sharding)
            for variable, sharding in placements
        ]

    def _is_placed_by_host(self, variable: VariableLike) -> bool:
        return layout_of(variable) is None and self._sharding_by_host(variable) is not None


def _sharding_beside_layouts(value: jax.Array, mesh: Mesh | AbstractMesh) -> Sharding | None:
    """Returns where a variable without a layout lives in a program that has variables over a mesh, or None."""
    # Left alone, XLA would choose a place, and the program (and others) would be compiled once more.
    if not value.committed:  # It lives nowhere in particular, as a step counter does.
        return NamedSharding(mesh, PartitionSpec())
    return value.sharding if value.sharding.device_set == set(mesh.devices.flat) else None


def _mesh_of_layouts(variables: Sequence[VariableLike]) -> Mesh | AbstractMesh | None:
    """Returns the mesh of the variables that have a layout; None if there are none."""
    first: tuple[VariableLike, Mesh | AbstractMesh] | None = None
    for variable in variables:
        layout = layout_of(variable)
        if layout is None:
            continue
        if first is None:
            first = variable, layout.mesh
        elif layout.mesh.devices.flatten().tolist() != first[1].devices.flatten().tolist():
            raise LayoutError(
                f"A function uses variables of different devices: {name_of(first[0])!r} lives over {first[1]!r}, "
                f"{name_of(variable)!r} over {layout.mesh!r}. One program runs on one set of devices."
            )
    return None if first is None else first[1]


def _values(variables: Sequence[VariableLike], fetched: Mapping[int, jax.Array]) -> list[jax.Array]:
    known = map(fetched.get, map(id, variables))
    return [array_of(variable) if value is None else value for variable, value in zip(variables, known, strict=True)]


def own(variables: Sequence[VariableLike]) -> None:
    """Gives each variable a buffer that nothing else refers to: a program is about to overwrite it."""
    # One after the other: of two variables that share an array only the first gets a copy.
    for variable in itertools.compress(variables, map(_references_if_alone().__lt__, _references(variables))):
        # A user has read it, or variables share it: after `a.assign(b)`, or weights and their moving averages in Keras.
        set_array(variable, copy_of(array_of(variable)))


def _references(variables: Iterable[VariableLike]) -> Iterator[int]:
    """Yields how many references there are to the array of each variable, those of counting among them."""
    return map(sys.getrefcount, map(array_of, variables))


@functools.cache
def _references_if_alone() -> int:
    """Returns what `_references` counts where only the variable refers to its array (Pythons differ)."""
    return next(_references([_Probe()]))  # type: ignore[list-item]  # it has what is looked at


class _Probe:
    def __init__(self) -> None:
        self._value = object()
