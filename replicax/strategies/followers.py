"""The variables that follow from world to world: each worker has their values, on devices that JAX has no more."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable

from jax.sharding import Sharding

from replicax.compat.jax_worlds import is_of_present_client
from replicax.membership.worlds import Worlds
from replicax.program.handover import store_values
from replicax.runtime.transfer import host_copy, put
from replicax.variable_access import VariableLike, array_of


class Followers:
    """The variables of a strategy that were used by programs of all workers, in the order of their first use.

    Args:
        worlds: The worlds of this process.

    Attributes:
        worlds: The worlds of this process.
    """

    def __init__(self, worlds: Worlds):
        self.worlds = worlds
        self._variables: weakref.WeakValueDictionary[int, VariableLike] = weakref.WeakValueDictionary()

    def add(self, variables: Iterable[VariableLike]) -> None:
        """Lets variables follow from now on."""
        self._variables.update((id(variable), variable) for variable in variables)

    def alive(self) -> list[VariableLike]:
        """Returns the variables that there still are."""
        return list(self._variables.values())

    def move(self, devices: int, sharding_of: Callable[[VariableLike], Sharding]) -> None:
        """Moves values that are on the devices of the last world to where they live in the present one.

        One that is on a device of this process alone stays: it is a first value, and the workers have yet to agree.

        Args:
            devices: The number of devices of the last world.
            sharding_of: Returns where a variable lives.
        """
        moved = [
            variable
            for variable in self.alive()
            if len(array_of(variable).sharding.device_set) == devices and not is_of_present_client(array_of(variable))
        ]
        store_values(moved, [put(host_copy(array_of(variable)), sharding_of(variable)) for variable in moved])
