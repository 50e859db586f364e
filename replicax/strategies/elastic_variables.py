"""The variables that follow from world to world: each worker has their values, on devices that JAX has no more."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Sharding, SingleDeviceSharding

from replicax.compat.jax_tracing import beside_traces
from replicax.compat.jax_worlds import is_of_present_client
from replicax.contracts.group import Group
from replicax.contracts.variable_access import (
    VariableLike,
    array_of,
    has_array,
    has_split_rows,
    is_per_replica_variable,
    name_of,
    shape_of,
)
from replicax.errors import ElasticError
from replicax.program.resized_variables import refitted
from replicax.program.storing import store_values
from replicax.runtime.transfer import host_copy, put, with_kind_of
from replicax.strategies.agreement import described, unnumbered


class Given(NamedTuple):
    """A variable of another worker."""

    name: str
    kind: str  # shape and dtype
    tracked: str  # its name in the checkpoint that the script has named; empty if it is not in there
    is_placed: bool  # whether it is on all devices; else it is a first value that the workers have yet to agree on
    components: int  # of a variable with one for each replica; else 0


class Followers:
    """The variables of a strategy, in the order in which they were made."""

    def __init__(self, group: Group):
        self.group = group
        # Returns the variables of the checkpoint that the script has named, by their names there.
        self.tracked: Callable[[], Mapping[str, VariableLike]] = dict
        # Variables of another worker that this one has not made yet, with their values.
        self.waiting: list[tuple[Given, np.ndarray]] = []
        self._variables: weakref.WeakValueDictionary[int, VariableLike] = weakref.WeakValueDictionary()
        self._placed: weakref.WeakValueDictionary[int, VariableLike] = weakref.WeakValueDictionary()

    def add(self, variables: Iterable[VariableLike]) -> None:
        """Lets variables follow from now on."""
        for variable in variables:
            if has_split_rows(variable):
                raise ElasticError(
                    f"Each worker has some of the rows of {name_of(variable)!r}, and they would be lost with the "
                    "worker. Where workers come and go, use layers whose variables every worker has, such as "
                    "keras.layers.Embedding."
                )
            self._variables.setdefault(id(variable), variable)

    def alive(self) -> list[VariableLike]:
        """Returns the variables that there still are, and have a value."""
        return [variable for variable in self._variables.values() if has_array(variable)]

    def has(self, variable: object) -> bool:
        return self._variables.get(id(variable)) is variable

    def move(self, was_at: Callable[[VariableLike], Sharding], home: Callable[[VariableLike], Sharding]) -> None:
        """Moves values that were on all devices of the last world to those of the present one."""
        alive = [each for each in self.alive() if not is_of_present_client(array_of(each))]
        # One that was not is a first value, on which the workers have yet to agree: it stays with this process.
        placed = [is_at(each, was_at(each)) for each in alive]
        components = [len(array_of(each)) if is_per_replica_variable(each) else 0 for each in alive]
        values = [_fitted(each, host_copy(array_of(each)), n, home) for each, n in zip(alive, components, strict=True)]
        store_values(alive, [_at(*each, home) for each in zip(alive, values, placed, strict=True)])

    # Giving and taking.

    def given(self, home: Callable[[VariableLike], Sharding]) -> tuple[list[Given], list[np.ndarray]]:
        """Returns all variables with their values, those included that this worker has been given and not made yet."""
        tracked, alive = self._tracked(), self.alive()
        own = [
            Given(
                *described_variable(each),
                tracked.get(id(each), ""),
                is_at(each, home(each)),
                len(array_of(each)) if is_per_replica_variable(each) else 0,
            )
            for each in alive
        ]
        values = [host_copy(array_of(each)) for each in alive]
        return [*own, *(each for each, _ in self.waiting)], [*values, *(value for _, value in self.waiting)]

    def take(
        self, given: Sequence[Given], values: Sequence[np.ndarray], home: Callable[[VariableLike], Sharding]
    ) -> None:
        """Gives the variables of this worker the values of another one's. Those that it has not made yet wait."""
        self.waiting = list(zip(given, values, strict=True))
        self._placed.clear()
        self.place_anew(home)

    def place_anew(self, home: Callable[[VariableLike], Sharding]) -> None:
        """Gives variables that were made since `take` the values that wait for them."""
        if not self.waiting:
            return
        with beside_traces():
            own = [each for each in self.alive() if id(each) not in self._placed]
            tracked = self._tracked()
            names = [(tracked.get(id(each), ""), *described_variable(each)) for each in own]
            pairs = matched(names, [each for each, _ in self.waiting])
            found = [(own[i], *self.waiting[j]) for i, j in pairs]
            taken = {j for _, j in pairs}
            new = [
                _at(variable, _fitted(variable, value, given.components, home), given.is_placed, home)
                for variable, given, value in found
            ]
            store_values([variable for variable, _, _ in found], new)
            self._placed.update((id(variable), variable) for variable, _, _ in found)
            self.waiting = [each for j, each in enumerate(self.waiting) if j not in taken]

    def _tracked(self) -> dict[int, str]:
        return {id(variable): name for name, variable in self.tracked().items()}


def matched(own: Sequence[tuple[str, str, str]], given: Sequence[Given]) -> list[tuple[int, int]]:
    """Returns which variable here is which of another worker's, as pairs of positions."""
    pairs: list[tuple[int, int]] = []
    here, there = dict(enumerate(own)), dict(enumerate(given))
    # First by their names in the checkpoint, then by their own names, then by these without the numbers that Keras
    # gives; equal ones in their order.
    keys: list[Callable[[str, str, str], tuple[str, ...] | None]] = [
        lambda tracked, name, kind: (tracked,) if tracked else None,
        lambda tracked, name, kind: (name,),
        lambda tracked, name, kind: (unnumbered(name), kind),
    ]
    for key in keys:
        places: dict[tuple[str, ...], list[int]] = {}
        for i, each in here.items():
            found = key(*each)
            if found is not None:
                places.setdefault(found, []).append(i)
        for j, other in list(there.items()):
            wanted = key(other.tracked, other.name, other.kind)
            if wanted is not None and places.get(wanted):
                i = places[wanted].pop(0)
                _check_same_kind(own[i], other)
                pairs.append((i, j))
                del here[i], there[j]
    return pairs


def _check_same_kind(own: tuple[str, str, str], other: Given) -> None:
    _, name, kind = own
    if kind != other.kind:
        raise ElasticError(
            f"Variable {name!r} is {kind} in this worker, and {other.name!r} is {other.kind} in those that train. All "
            "workers must run the same script, with the same settings."
        )


def described_variable(variable: VariableLike) -> tuple[str, str]:
    """Returns the name of a variable, and the shape and dtype of one copy."""
    name, kind = described(name_of(variable), array_of(variable))
    if is_per_replica_variable(variable):
        kind = f"{shape_of(variable)} {array_of(variable).dtype}"
    return name, kind


def is_at(variable: VariableLike, sharding: Sharding) -> bool:
    """Returns whether a variable lives there; else it is to be placed before the next program, as a first value."""
    value = array_of(variable)
    return value.sharding == sharding and bool(value.committed)


def _fitted(
    variable: VariableLike, value: np.ndarray, components: int, home: Callable[[VariableLike], Sharding]
) -> np.ndarray:
    """Returns a value as the variable has it with the replicas that there are now."""
    return refitted(variable, value, components, home(variable).num_devices)


def _at(
    variable: VariableLike, value: np.ndarray, is_placed: bool, home: Callable[[VariableLike], Sharding]
) -> jax.Array:
    sharding = home(variable) if is_placed else SingleDeviceSharding(jax.local_devices()[0])
    return put(with_kind_of(array_of(variable), value), sharding)
