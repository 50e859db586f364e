"""The group of this process: the workers that train together now, be they the same until the end, or others.

`Group` is a process alone. `group.fixed_group.FixedGroup` has all processes that JAX connects. Of an `ElasticGroup`
(`group.membership.elastic_group`) members may be lost and others come, while the rest go on. Whoever does something
together with others asks the group to do it, and need not know of which kind it is.

It is asked in every step, and by launchers, so next to nothing is imported here.
"""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import replicax.contracts.upper_rooms as upper_rooms
from replicax.errors import WorkersDisagreeError
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
    """The members of a group between two changes."""

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


class Group:
    """The processes that train together; by default a process alone.

    A *call* is what all members make together: a step of training, a sum, a checkpoint. All of them make the same calls
    in the same order.
    """

    may_change = False  # whether members may be lost, and others come, while the rest go on

    def __init__(self) -> None:
        self.always: list[State] = []  # given to newcomers in any case: the variables of strategies
        self.state: State | None = None  # given to them besides; see `offer`
        self.changes: list[Callable[[], None]] = []  # called in this order when a world has begun

    @property
    def number(self) -> int:
        """The number of the present world: another one whenever the members have changed."""
        return 0

    @property
    def world(self) -> World:
        """The present members."""
        return World(self.number, 0, (0,), ("worker:0",))

    @property
    def members(self) -> tuple[int, ...]:
        """The indices of the present members in the cluster, ascending."""
        return self.world.members

    @property
    def is_member(self) -> bool:
        """Whether this process belongs to the group; a newcomer does not before `join`."""
        return True

    @property
    def came_later(self) -> bool:
        """Whether others have trained before this process: it is a newcomer, or replaces a worker that was lost."""
        return False

    @property
    def is_chief(self) -> bool:
        """Whether this process is the one that reports and writes now; when it is lost, the next one is."""
        return self.is_member and self.world.index == 0

    # Calls.

    @property
    def calls(self) -> int:
        """How many calls have been completed, where members may change: the same in all at the same place."""
        return 0

    def place(self) -> tuple[int, int]:
        """Returns where this process is in its program: the same numbers in all members that are at the same place."""
        from replicax.runtime.calls import place_in_program

        return place_in_program()

    def attempt(self, call: Callable[[], _T]) -> _T:
        """Returns what `call` returns; makes it again, in a new world, whenever a member is lost meanwhile."""
        return call()

    def executed(
        self,
        run: Callable[[], _T],
        outcome_of: Callable[[_T], list[np.ndarray]],
        adopted: Callable[[list[np.ndarray]], _T],
        nbytes: int = 0,
    ) -> _T:
        """Returns what `run`, in the middle of a call, returns; or what `adopted` makes of another member's outcome.

        A call makes at most one of these. `run` changes nothing: it may be made again. `nbytes` is the outcome's size.
        """
        del outcome_of, adopted, nbytes
        return run()

    def together(
        self,
        run: Callable[[], _T],
        outcome_of: Callable[[_T], list[np.ndarray]],
        adopted: Callable[[list[np.ndarray]], _T],
    ) -> _T:
        """Makes a call of `run` (see `executed`) and nothing else. A newcomer makes it alone."""
        if not self.is_member:  # Its world is its own.
            return run()
        return self.attempt(lambda: self.executed(run, outcome_of, adopted))

    def wait(self, values: object) -> None:
        """Waits until arrays are computed, if a member may be lost meanwhile: then it raises a `RuntimeError`."""

    def renewed(self, tree: PyTree) -> PyTree:
        """Returns `tree` for the present world: batches of an earlier one have the same global rows, split anew."""
        return tree

    def messages(self, own: bytes) -> list[bytes]:
        """Returns the messages of all members, in their order; all of them call it together, in a call or alone."""
        return [own]

    def exchange(self, what: str, value: Any, before: Callable[[], object] | None = None) -> list[Any]:
        """Returns the values of all members, in their order, when all have come here.

        Args:
            what: What is exchanged, for messages; the same in all.
            value: What JSON can hold.
            before: Called first, if given, and again where a member is lost and the others come here again.

        Raises:
            WorkersDisagreeError: A member has come to something else that all do together.
        """
        import replicax.runtime.activity as activity  # Beside JAX, which a launcher, who names incarnations, needs not.

        # Through host memory: a collective would mix with one that a worker has come to elsewhere.
        own = json.dumps({"what": what, "value": value}).encode()

        def told() -> list[bytes]:
            if before is not None:
                before()
            with activity.phase(activity.WAIT, what):
                return self.messages(own)

        found = [_read(each) for each in self.together(told, as_arrays, as_messages)]
        whats = {f"process {i}": [str(each.get("what", "something else"))] for i, each in enumerate(found)}
        if len({said for (said,) in whats.values()}) > 1:
            raise WorkersDisagreeError("things to do together", whats)
        return [each["value"] for each in found]

    def barrier(self, name: str) -> None:
        """Waits until all members have come here, with the same name."""
        self.exchange(f"barrier {name!r}", None)

    # Newcomers.

    def offer(self, state: State | None) -> None:
        """Says what newcomers get besides the variables of strategies, where there are newcomers."""

    def boundary(self, *places: object) -> None:
        """Takes newcomers in between two calls: then the present world is another."""

    def join(self) -> bool:
        """Waits until the others take this newcomer in, and takes their state; returns whether it is one."""
        return False

    # The end.

    def ballot(self, patience: Any, closed: threading.Event) -> Ballot | None:
        """Returns where members vote when to stop, for `group.stop_vote.StopVote`; None if there is nobody else."""
        # `patience` is a `cluster.patience.Patience`; `closed` is set when nobody waits any more.
        del patience, closed
        return None


class Ballot(Protocol):
    """Where members vote at which of their checks to stop, round by round.

    A *position* counts the checks of a process, such that the same one is the same place in all members' programs.
    """

    @property
    def is_final(self) -> bool:
        """Whether nothing comes after the first round: the job ends."""

    def position(self, checks: int) -> int:
        """Returns the position of a check of this process, before which there have been `checks`."""

    def call(self, round_: int) -> None:
        """Calls for the vote of a round."""

    def is_called(self, round_: int) -> bool:
        """Waits for a moment until a member has called for the vote of a round; returns whether one has."""

    def cast(self, round_: int, passed: int) -> None:
        """Tells the last position that this process has passed; -1 if none."""

    def result(self, round_: int) -> int:
        """Waits for the votes of all members; returns the largest. It raises a CheckpointError if some do not come."""


def as_arrays(messages: Sequence[bytes]) -> list[np.ndarray]:
    """Returns messages as the outcome of a call."""
    import numpy as np

    return [np.frombuffer(message, np.uint8) for message in messages]


def as_messages(arrays: Sequence[np.ndarray]) -> list[bytes]:
    """Returns the messages that `as_arrays` was given."""
    return [array.tobytes() for array in arrays]


def _read(message: bytes) -> dict[str, Any]:
    try:
        found = json.loads(message)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


_present: Group | None = None


def current_group() -> Group:
    """Returns the group of this process."""
    global _present
    if _present is None:
        _present = upper_rooms.load(upper_rooms.FIXED_GROUP)()
    return _present


def install(group: Group) -> None:
    """Makes `group` that of this process."""
    global _present
    _present = group
