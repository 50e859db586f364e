"""The present world of this process: the workers that train together now, while workers come and go.

It is asked in every step, so next to nothing is imported here: `elastic_worlds` makes the worlds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from replicax.typing import PyTree

if TYPE_CHECKING:
    import numpy as np

_T = TypeVar("_T")

#: The number of the world of a newcomer that has not been taken in.
ALONE = -1


@dataclasses.dataclass(frozen=True, order=True)
class Incarnation:
    """One run of a process: a replacement has the index of the process that it replaces, and another number."""

    index: int  # of the process in the job
    number: int  # counts the runs of this process


@dataclasses.dataclass(frozen=True)
class World:
    """The workers that train together."""

    number: int  # the same in all of them; another one for each world; `ALONE` in the world of a newcomer
    index: int  # of this process among them: JAX's process index
    members: tuple[int, ...]  # their indices in the cluster, ascending
    names: tuple[str, ...]
    newcomers: tuple[int, ...] = ()  # the members who were not in the world before


class State(Protocol):
    """A state that members give to newcomers."""

    def give(self) -> tuple[Sequence[Any], bytes]:
        """Returns the state of this process as NumPy arrays, and what else there is to know of it."""

    def take(self, arrays: Sequence[Any], meta: bytes) -> None:
        """Takes the state that another process has given, in the new world."""

    def is_boundary(self, places: Sequence[object]) -> bool:
        """Returns whether a newcomer that takes this state now goes on as this process does."""
        # `places` are the objects at which the script is, such as the iterator whose next batch it asks for; empty
        # where the script says itself that newcomers may come in.


class Worlds(Protocol):
    """The worlds of this process, one after the other; `elastic_worlds.ElasticWorlds` says what the methods do."""

    world: World  # the present one
    always: list[State]  # given to newcomers in any case: the strategy's variables
    state: State | None  # given to them besides; None until the script has said what: then none is taken in
    changes: list[Callable[[], None]]  # called when a world has begun, in this order
    preemption: Any  # a `group.membership.preemption.Preemption`: what SIGTERM means; None if nothing decides it

    @property
    def calls(self) -> int:
        """How many calls have been completed: in all members the same at the same point of the script."""

    @property
    def incarnations(self) -> tuple[Incarnation, ...]:
        """The present members, each with the run of it that takes part; this process's own is `incarnation`."""

    @property
    def incarnation(self) -> Incarnation:
        """This run of this process."""

    @property
    def may_leave(self) -> bool:
        """Whether enough others go on if this process leaves."""

    @property
    def is_taken_in(self) -> bool:
        """Whether this process is a member."""

    def attempt(self, call: Callable[[], _T]) -> _T:
        """Returns what `call` returns; makes it again, in a new world, whenever a member is lost meanwhile."""

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

    def boundary(self, *places: object) -> None:
        """Takes newcomers in between two calls: then the present world is another."""

    @property
    def awaits(self) -> str:
        """The class of the state that waits for this process to come where the others are; empty if none does."""

    def join(self) -> None:
        """Waits until the others take this newcomer in, and takes their state. Does nothing in a member."""

    def renewed(self, tree: PyTree) -> PyTree:
        """Returns `tree` for the present world: batches of an earlier one have the same global rows, split anew."""

    def leave_soon(self, reason: str) -> None:
        """Lets this process leave between two calls, and end. For signal handlers."""


#: The worlds of this process; None if its job is not elastic. Each step looks here.
present: Worlds | None = None


def running() -> Worlds | None:
    """Returns the worlds of this process; None if its job is not elastic."""
    return present


def number() -> int:
    """Returns the number of the present world; 0 if the job is not elastic."""
    return 0 if present is None else present.world.number


def install(worlds: Worlds) -> None:
    """Makes `worlds` those of this process."""
    global present
    present = worlds
