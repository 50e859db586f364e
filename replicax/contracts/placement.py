"""The contract of placements, which `strategies.Placement` fills in: where values live, and how they move.

A *mirrored* value is replicated over all devices; a *stacked* one has a row for each replica, on its device. A program
may run on the first few replicas only: `replicas` is their number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, Sharding

from replicax.contracts.variable_access import TreeLeaf, VariableLike
from replicax.typing import PyTree

_T = TypeVar("_T")


class ReplicaDevicesLike(Protocol):
    """The devices of the replicas, and how values move from one to the other."""

    @property
    def replicas(self) -> int:
        """Number of replicas."""

    @property
    def spans_processes(self) -> bool:
        """Whether some of the devices belong to other processes."""

    @property
    def workers(self) -> tuple[str, ...]:
        """The names of the processes in messages, in their order."""

    @property
    def is_chief(self) -> bool:
        """Whether this process is the first of them, which writes for all."""

    @property
    def home(self) -> Sharding:
        """Where a value is that is no replica's own: on all devices, or on the one that has all variables."""

    def mesh_for(self, replicas: int) -> Mesh:
        """Returns the mesh of the first `replicas` replicas; ContextError if there is no mesh."""

    def sharding(self, stacked: bool, replicas: int | None = None) -> NamedSharding:
        """Returns where a mirrored or a stacked value lives on the first `replicas` replicas; None: on all."""

    # Arguments and results.

    def place(self, value: jax.typing.ArrayLike, stacked: bool = False, replicas: int | None = None) -> jax.Array:
        """Returns a copy of `value` on the devices; it shares no buffer with `value`."""

    def agreed(
        self, values: Sequence[jax.typing.ArrayLike], names: Sequence[str], what: str = ...
    ) -> Sequence[jax.typing.ArrayLike]:
        """Returns values that are the same in every process: those of one process alone become process 0's."""
        # ValuesMismatchError if the processes have values of other names, shapes or dtypes, or in another order.

    def shrunk(self, array: jax.Array, replicas: int) -> jax.Array:
        """Returns an argument that is on all devices, mirrored or cut, as a program on `replicas` replicas takes it."""

    def takes_part(self, replicas: int) -> bool:
        """Returns whether a device of the first `replicas` replicas belongs to this process."""

    def result_sharding(self, replicas: int) -> Sharding | None:
        """Returns where a program leaves results that every process reads; None leaves it to XLA."""

    def spread(self, values: Sequence[jax.Array]) -> Sequence[jax.Array]:
        """Returns results of a program on some of the devices in every process, also in those without a part in it."""

    def rejoined(self, tree: PyTree, replicas: int) -> PyTree:
        """Returns results of a program on `replicas` replicas, the mirrored ones on all devices."""


class FirstValueLike(Protocol):
    """A first value that is still to be computed."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""

    @property
    def dtype(self) -> np.dtype:
        """Its dtype."""


class WorldsLike(Protocol):
    """The sets of workers that train together, one after the other; `membership.Worlds` fills it in."""

    def executed(
        self,
        run: Callable[[], _T],
        outcome_of: Callable[[_T], list[np.ndarray]],
        adopted: Callable[[list[np.ndarray]], _T],
        nbytes: int = 0,
    ) -> _T:
        """Returns what `run`, which runs a program of all workers, returns; or the outcome of another worker."""

    def wait(self, values: object) -> None:
        """Waits until arrays are computed; raises a RuntimeError if a worker is lost meanwhile."""


class PlacementLike(ReplicaDevicesLike, Protocol):
    """Where the values of variables live: between steps, in a program, and on replicas. It also moves them."""

    @property
    def shards_variables(self) -> bool:
        """Whether between steps a device may have a part of a variable only."""

    @property
    def worlds(self) -> WorldsLike | None:
        """The worlds of this process, if workers may come and go."""

    def follow(self, variables: Sequence[VariableLike]) -> None:
        """Notes variables that must follow to the devices of the next world."""

    def variable_sharding(self, variable: VariableLike) -> Sharding | None:
        """Returns where a variable's value lives between steps; None leaves it where it is."""

    def leaf_sharding(self, leaf: TreeLeaf) -> Sharding | None:
        """Returns where `replicate` puts a leaf of a pytree; None leaves it where it is."""

    def program_sharding(self, variable: VariableLike, replicas: int) -> Sharding | None:
        """Returns where its value is at the beginning and end of a program; None leaves it where it is."""

    def replica_sharding(self, variable: VariableLike, replicas: int) -> Sharding | None:
        """Returns where the replicas have its value; None leaves it where it is."""

    def first_value(self, function: Callable[[], jax.Array]) -> FirstValueLike | None:
        """Returns what stands for a function's value until `create` computes it; None: call the function."""
        # It is not computed yet where it may be too large for one device.

    def create(self, variable: VariableLike, value: FirstValueLike) -> None:
        """Computes the value that a variable holds first, where it lives between steps."""

    def initialize(self, variable: VariableLike, value: jax.typing.ArrayLike) -> None:
        """Makes a copy of `value` what the variable holds, where it lives between steps."""

    def load(
        self, variables: Sequence[VariableLike], replicas: int, homes: Sequence[Sharding | None] | None = None
    ) -> list[jax.Array]:
        """Returns the values of variables as a program on `replicas` replicas takes them."""
        # `homes`: where a program on all replicas wants the values; by default where variables live between steps.

    def stored(self, variables: Sequence[VariableLike], values: Sequence[jax.Array]) -> list[jax.Array]:
        """Returns what a program on any number of replicas has computed for variables, as they hold it."""

    def moved(self, values: Sequence[jax.Array], shardings: Sequence[Sharding]) -> list[jax.Array]:
        """Returns what a program on any number of replicas has computed, with these shardings."""

    def make_alike(self, variables: Sequence[VariableLike]) -> None:
        """Gives variables that some process has changed on its own process 0's values; all call this together."""
