"""Where the values of variables live: between steps, in a program, and on replicas; and how they move.

`Placement` is the null object: values stay where JAX put them. `strategies.MeshPlacement` places them over a mesh.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, Sharding

from replicax.contracts.group import Group
from replicax.contracts.variable_access import (
    TreeLeaf,
    VariableLike,
    array_of,
    bytes_of,
    is_per_replica_variable,
    set_array,
)
from replicax.errors import ContextError
from replicax.typing import PyTree

_ALONE = Group()
MIRRORED = "mirrored"


class FirstValueLike(Protocol):
    """A first value that is still to be computed."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""

    @property
    def dtype(self) -> np.dtype:
        """Its dtype."""


class Placement:
    """Where values live, and how they move. By default there is one replica, and values stay where JAX put them.

    A *mirrored* value is replicated over all devices; a *stacked* one has a row for each replica, on its device. A
    program may run on the first few replicas only: the argument `replicas` is their number.
    """

    replicas = 1
    spans_processes = False  # whether some of the devices belong to other processes

    @property
    def shards_variables(self) -> bool:
        """Whether between steps a device may have a part of a variable only."""
        return False

    @property
    def group(self) -> Group:
        """The processes that the devices belong to; by default this one alone."""
        return _ALONE

    @property
    def workers(self) -> tuple[str, ...]:
        """The names of the processes in messages, in their order."""
        return ("process 0",)

    @property
    def is_chief(self) -> bool:
        """Whether this process is the first of them, which writes for all."""
        return True

    # Meshes.

    def mesh_for(self, replicas: int) -> Mesh:
        """Returns the mesh of the first `replicas` replicas.

        Raises:
            ContextError: There is no mesh.
        """
        raise ContextError(f"The default strategy has no mesh of {replicas} replicas.")

    def sharding(self, stacked: bool, replicas: int | None = None) -> NamedSharding:
        """Returns where a mirrored or a stacked value lives on the first `replicas` replicas; None: on all.

        Raises:
            ContextError: There is no mesh.
        """
        del stacked
        raise ContextError(f"The default strategy has no mesh of {replicas or self.replicas} replicas.")

    @property
    def home(self) -> Sharding:
        """Where a value is that is no replica's own: on all devices, or on the one that has all variables.

        Raises:
            ContextError: There is no mesh.
        """
        return self.sharding(stacked=False)

    # Variables.

    def variable_sharding(self, variable: VariableLike) -> Sharding | None:
        """Returns where a variable's value lives between steps; None leaves it where it is."""
        del variable
        return None

    def leaf_sharding(self, leaf: TreeLeaf) -> Sharding | None:
        """Returns where `replicate` puts a leaf of a pytree; None leaves it where it is."""
        del leaf
        return None

    def program_sharding(self, variable: VariableLike, replicas: int) -> Sharding | None:
        """Returns where a variable's value is at the beginning and end of a program; None leaves it where it is."""
        del variable, replicas
        return None

    def replica_sharding(self, variable: VariableLike, replicas: int) -> Sharding | None:
        """Returns where the replicas have a variable's value; None leaves it where it is."""
        del variable, replicas
        return None

    def first_value(self, function: Callable[[], jax.Array]) -> FirstValueLike | None:
        """Returns what stands for a function's value until `create` computes it; None if the function is to be called.

        It is not computed yet where it may be too large for one device.
        """
        del function
        return None

    def create(self, variable: VariableLike, value: FirstValueLike) -> None:
        """Computes the value that a variable holds first, where it lives between steps."""
        raise ContextError(f"{type(self).__name__} computes no first values: {variable!r}, {value!r}.")

    def initialize(self, variable: VariableLike, value: jax.typing.ArrayLike) -> None:
        """Makes a copy of `value` what the variable holds, where it lives between steps."""
        set_array(variable, jnp.copy(value))

    def load(
        self, variables: Sequence[VariableLike], replicas: int, homes: Sequence[Sharding | None] | None = None
    ) -> list[jax.Array]:
        """Returns the values of variables as a program on `replicas` replicas takes them.

        `homes` is where one on all replicas wants them; by default where variables live between steps.
        """
        del replicas, homes
        return [array_of(variable) for variable in variables]

    def stored(self, variables: Sequence[VariableLike], values: Sequence[jax.Array]) -> list[jax.Array]:
        """Returns what a program on any number of replicas has computed for variables, as they hold it."""
        del variables
        return list(values)

    def moved(self, values: Sequence[jax.Array], shardings: Sequence[Sharding]) -> list[jax.Array]:
        """Returns what a program on any number of replicas has computed, with these shardings."""
        return [jax.device_put(value, sharding) for value, sharding in zip(values, shardings, strict=True)]

    def follow(self, variables: Sequence[VariableLike]) -> None:
        """Notes variables that must follow to the devices of the next world."""

    def make_alike(self, variables: Sequence[VariableLike]) -> None:
        """Gives variables that some process has changed on its own process 0's values; all call this together.

        Raises:
            ValuesMismatchError: The processes have other variables.
        """

    # For `Strategy.explain`.

    described_sum = "on each device"  # the meaning of the sum of `bytes_held`

    def described(self, variable: VariableLike) -> str:
        """Returns how a variable is laid out, or where it is, in words."""
        return "one for each replica" if is_per_replica_variable(variable) else MIRRORED

    def rule_of(self, variable: VariableLike) -> str:
        """Returns the rule that decided about a variable's layout; empty where the strategy shards none."""
        del variable
        return ""

    def bytes_held(self, variable: VariableLike) -> int:
        """Returns the bytes that each device holds of a variable."""
        sharding = None if is_per_replica_variable(variable) else self.variable_sharding(variable)
        return bytes_of(variable, sharding)

    @property
    def axis_sizes(self) -> dict[str, int]:
        """The axes of the mesh by the names that the user knows, and their sizes."""
        mesh = self.mesh_for(self.replicas)
        return dict(zip(mesh.axis_names, mesh.devices.shape, strict=True))

    # Arguments and results.

    def place(self, value: jax.typing.ArrayLike, stacked: bool = False, replicas: int | None = None) -> jax.Array:
        """Returns a copy of `value` on the devices; it shares no buffer with `value`."""
        del stacked, replicas
        return jnp.array(value, copy=True)

    def agreed(
        self, values: Sequence[jax.typing.ArrayLike], names: Sequence[str], what: str = ""
    ) -> Sequence[jax.typing.ArrayLike]:
        """Returns values that are the same in every process: those of one process alone become process 0's.

        Raises:
            ValuesMismatchError: The processes have values of other names, shapes or dtypes, or in another order.
        """
        del names, what
        return values

    def shrunk(self, array: jax.Array, replicas: int) -> jax.Array:
        """Returns an argument that is on all devices, mirrored or cut, as a program on `replicas` replicas takes it."""
        del replicas
        return array

    def takes_part(self, replicas: int) -> bool:
        """Returns whether a device of the first `replicas` replicas belongs to this process."""
        del replicas
        return True

    def result_sharding(self, replicas: int) -> Sharding | None:
        """Returns where a program leaves results that every process reads; None leaves it to XLA."""
        del replicas
        return None

    def spread(self, values: Sequence[jax.Array]) -> Sequence[jax.Array]:
        """Returns results of a program on some of the devices in every process, also in those without a part in it."""
        return values

    def rejoined(self, tree: PyTree, replicas: int) -> PyTree:
        """Returns results of a program on `replicas` replicas, the mirrored ones on all devices."""
        del replicas
        return tree
