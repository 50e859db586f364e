"""The stages of a save or restore, which all processes of a job go through together, on the host.

No device takes part, so a thread may coordinate with the other processes' threads while the devices compute. Each stage
has a name and a deadline; an error says which processes did not come, or which one failed.
"""

from __future__ import annotations

import collections
import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import jax

import replicax.runtime.activity as activity
from replicax.cluster.exchange import (
    AbsentError,
    ClosedError,
    Exchange,
    FailedElsewhereError,
    by_value,
    closing,
    listed,
)
from replicax.cluster.key_value_store import Store
from replicax.contracts.group import current_group
from replicax.errors import CheckpointError, ReplicaxError
from replicax.runtime.calls import note_outside, take_back

_T = TypeVar("_T")
_KIND = "checkpoint"
#: How long processes wait for each other unless they are told: parts of a large model that one writes and another does
#: not, or a slow disk, take minutes. The monitor of the processes notices one that is dead or hangs long before.
TIMEOUT_S = 600.0


class _Numbers:
    """Numbers the coordinations of each kind, anew where JAX connects this process with others."""

    def __init__(self) -> None:
        self._world, self._next = 0, collections.Counter[str]()
        self._ended: dict[tuple[str, bool], int] = {}

    def next(self, kind: str) -> int:
        number = current_group().number
        if self._world != number:
            self._world, self._next, self._ended = number, collections.Counter(), {}
        self._next[kind] += 1
        return self._next[kind] - 1

    def ended(self, kind: str, number: int) -> int | None:
        """Notes that a coordination has ended; returns the one that ended before it, which all processes have left."""
        # The script makes one after the other, and so does the thread of saves. But a save may go on in that thread
        # while the script has long begun and ended the next coordination.
        of_script = threading.current_thread() is threading.main_thread()
        before = self._ended.get((kind, of_script))
        self._ended[kind, of_script] = number
        return before


_numbers = _Numbers()


class Coordination:
    """All processes in one save, restore or look-up. All of them make the same ones in the same order."""

    def __init__(
        self,
        name: str,
        timeout_s: float = TIMEOUT_S,
        *,
        process: int | None = None,
        count: int | None = None,
        store: Store | None = None,
        kind: str = _KIND,
        called: str = "",
    ):
        self.name, self._timeout_s = name, timeout_s  # the name is for messages
        # Counted by kind: the processes may differ in how often they have done something of another kind.
        self._kind, self._number = kind, _numbers.next(kind)
        # The calls of programs after which this process has come here: now, since a thread may go on with it while the
        # script trains.
        self.place = current_group().place()
        self._count = jax.process_count() if count is None else count
        if kind == _KIND and self._count > 1:
            # For a report that only some processes have called it. Those that save or restore compare what themselves.
            note_outside(called or name, _KIND)
        self._exchange = Exchange(
            f"replicax/{kind}",
            jax.process_index() if process is None else process,
            range(self._count),
            store=store,
            timeout_s=timeout_s,
            closed=closing(),
            waiting=self._waiting,
        )

    @property
    def is_chief(self) -> bool:
        """Whether this is the process that decides and commits."""
        return self._exchange.process == 0

    def from_chief(self, what: str, value: str = "") -> str:
        """Returns the chief's `value` in every process."""
        if self._count == 1:
            return value
        with self._explained():
            return self._exchange.from_first(self._stage(what), value.encode()).decode()

    def check_same(self, what: str, value: str) -> None:
        """Checks that all processes have the same `value`, such as the path that all of them write to."""
        self.compare(what, self.all_values(f"same {what}", value))

    def check_same_place(self) -> None:
        """Checks that all processes have come here after the same calls of programs."""
        told = self.all_values("the same calls before it", json.dumps(self.place))
        self.compare_places([json.loads(each) for each in told])

    def compare_places(self, places: Sequence[Sequence[object]]) -> None:
        """Checks that the places of all processes are the same."""
        # Else one of them saves alone, and what it is paired with is another's later save, of other values. Then all
        # refuse it, and go on from where they are.
        if any(list(place) != list(places[0]) for place in places):
            take_back(self.place)
            told = by_value(range(self._count), [f"after {number} steps and other calls" for number, _ in places])
            raise CheckpointError(
                f"{self.name}: all processes must save together, but they came to it after different calls of "
                f"programs that all of them run, or with different arguments ({listed(told)}). Look for a save that "
                "only some of them make, such as one behind `if strategy.is_chief`, and for numbers and NumPy arrays "
                "passed to steps that differ."
            )

    def compare(self, what: str, values: Sequence[str]) -> None:
        """Checks that the values of all processes are the same, such as the path that all of them write to."""
        told = by_value(range(self._count), values)
        if len(told) > 1:
            raise CheckpointError(
                f"{self.name}: the processes have different values for the {what} ({listed(told)}). Give all of "
                "them the same: each writes and reads its part there, so it must be a place that all of them see. The "
                "number of a step is part of it: all save the same one."
            )

    def all_values(self, what: str, value: str) -> list[str]:
        """Returns the values of all processes, in their order."""
        if self._count == 1:
            return [value]
        with self._explained():
            return [each.decode() for each in self._exchange.exchange(self._stage(what), value.encode())]

    def run(self, stage: str, action: Callable[[], _T], failed: str) -> _T:
        """Calls `action`, waits until all processes have called theirs, and returns its result."""
        return self._together(
            failed, lambda: action() if self._count == 1 else self._exchange.run(self._stage(stage), action)
        )

    def run_and_tell(self, stage: str, action: Callable[[], object], failed: str) -> list[Any]:
        """Calls `action`; returns what it has returned in each process, through JSON, when all have called theirs."""

        def told() -> bytes:
            return json.dumps(action()).encode()

        def everyones() -> list[bytes]:
            return [told()] if self._count == 1 else self._exchange.run_and_tell(self._stage(stage), told)

        return [json.loads(each) for each in self._together(failed, everyones)]

    def _together(self, failed: str, call: Callable[[], _T]) -> _T:
        try:
            with activity.phase(activity.CHECKPOINT), self._explained():
                return call()
        except FailedElsewhereError as error:
            raise CheckpointError(f"{failed} by process {error.process}: {error.problem}") from None
        except (ReplicaxError, ClosedError):
            raise
        except Exception as error:
            raise CheckpointError(f"{failed}: {error}") from error

    def tried(self, stage: str, action: Callable[[], _T], failed: str) -> _T:
        """Returns what `action` returns, without waiting. The others learn of a failure when they come to `stage`."""
        try:
            return action()
        except Exception as error:
            raised = error

        def fail() -> _T:
            raise raised

        return self.run(stage, fail, failed)

    def end(self) -> None:
        """Lets the chief remove the messages of a coordination before this one that all have left."""
        if self._count > 1 and self.is_chief and (before := _numbers.ended(self._kind, self._number)) is not None:
            self._exchange.forget(str(before))

    def _stage(self, stage: str) -> str:
        return f"{self._number}/{stage}"

    def _waiting(self, stage: str, processes: Sequence[int]) -> activity.exchange:
        everyone = len(processes) >= self._count - 1
        what = f"{self.name}: {_shown(stage)}"
        return activity.exchange(what, () if everyone else processes, frozenset({activity.CHECKPOINT}))

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except AbsentError as error:
            raise CheckpointError(
                f"{self.name}: process {self._exchange.process} waited {self._timeout_s:g} s at "
                f"{_shown(error.stage)!r} for {', '.join(f'process {process}' for process in error.missing)}. All "
                "processes must save and restore together, in the same order; look at the log of those that did not "
                "come."
            ) from None


def coordinated(name: str, timeout_s: float, call: Callable[[Coordination], _T], alone: Callable[[], _T]) -> _T:
    """Returns what `call` returns, which all processes make together; `alone` does it where the others have gone on.

    It may be made again, so it changes nothing.
    """
    return current_group().together(lambda: call(Coordination(name, timeout_s)), lambda _: [], lambda _: alone())


def _shown(stage: str) -> str:
    return stage.partition("/")[2]
