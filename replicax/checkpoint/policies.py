"""When an `rx.CheckpointManager` saves, and what it keeps.

`save_when=` takes policies of which one that says so suffices; so does `keep=`. A policy of your own is a subclass of
`SavePolicy` or `KeepPolicy`. Whoever wants a save before a worker is preempted gives the manager to an
`rx.PreemptionCheckpointHandler`, which also ends the job; it asks no policy.

Example:
    >>> import tempfile
    >>> from replicax.checkpoint import policies
    >>> accuracy = rx.Variable(0.0)
    >>> manager = rx.CheckpointManager(
    ...     tempfile.mkdtemp(),
    ...     objects={"w": rx.Variable(0.0)},
    ...     save_when=[policies.EverySteps(2), policies.EverySeconds(600)],
    ...     keep=[policies.Newest(1), policies.Best(1, accuracy), policies.EverySteps(10)],
    ... )
    >>> for step in range(1, 15):
    ...     _ = accuracy.assign(-abs(step - 6))
    ...     path = manager.save(step)
    >>> manager.close()
    >>> manager.all_steps()
    [6, 10, 14]
"""

from __future__ import annotations

import abc
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from replicax.checkpoint.numbered import NumberedCheckpoint
from replicax.checks import checked_int, checked_seconds, is_real
from replicax.contracts.group import current_group
from replicax.contracts.variable_access import VariableLike, array_of, is_variable
from replicax.errors import ArgumentError
from replicax.typing import PyTree

__all__ = ["Best", "EveryHours", "EverySeconds", "EverySteps", "Improved", "KeepPolicy", "Newest", "SavePolicy"]

#: A number that tells how good a training is: a function without arguments that returns it, or a variable.
Measure: TypeAlias = Callable[[], object] | VariableLike


_IMPROVED = "replicax_improved_"


class SavePolicy(abc.ABC):
    """Says when it is time to save.

    Example:
        >>> from replicax.checkpoint.policies import SavePolicy
        >>> class AtPowersOfTwo(SavePolicy):
        ...     def is_due(self, step):
        ...         return step is not None and step & (step - 1) == 0
        >>> [step for step in range(1, 20) if AtPowersOfTwo().is_due(step)]
        [1, 2, 4, 8, 16]
    """

    @abc.abstractmethod
    def is_due(self, step: int | None) -> bool:
        """Returns whether to save at a step, whose number may be unknown; the same in all processes.

        It is asked in each call of `save` that is not forced.
        """

    def restart(self) -> None:  # noqa: B027  # Most have nothing to begin anew, and nothing to hand on.
        """Called when the training has been saved or restored, for whatever reason."""

    def get_state(self) -> PyTree:
        """Returns what this policy has to know in a worker that joins an elastic job, in a form that JSON can hold."""
        return None

    def set_state(self, state: PyTree) -> None:  # noqa: B027
        """Goes on where that of another worker is, which has returned `state`."""


class KeepPolicy(abc.ABC):
    """Says which checkpoints are kept when a new one is complete; the others are deleted.

    Example:
        >>> from replicax.checkpoint.policies import KeepPolicy
        >>> class OfThisWeek(KeepPolicy):
        ...     def kept(self, saved):
        ...         return [each.number for each in saved if each.written_at > saved[-1].written_at - 7 * 24 * 3600]
        >>> OfThisWeek().kept([])
        []
    """

    @abc.abstractmethod
    def kept(self, saved: Sequence[NumberedCheckpoint]) -> Iterable[int]:
        """Returns the steps of the checkpoints that are kept.

        Args:
            saved: Those of this training, in the order of their steps, and at the end the new one, which is kept in any
                case. Each has `number` (its step), `written_at` (seconds since the epoch) and `notes`.
        """


class EverySteps(SavePolicy, KeepPolicy):
    """At multiples of a number of steps: saves then, and keeps what was saved then.

    Example:
        >>> from replicax.checkpoint.policies import EverySteps
        >>> [step for step in range(1, 10) if EverySteps(3).is_due(step)]
        [3, 6, 9]
    """

    def __init__(self, steps: int):
        self.steps = checked_int("steps", steps, least=1)

    def is_due(self, step: int | None) -> bool:
        return step is None or step % self.steps == 0

    def kept(self, saved: Sequence[NumberedCheckpoint]) -> list[int]:
        return [each.number for each in saved if each.number % self.steps == 0]


class EverySeconds(SavePolicy):
    """Saves when so many seconds have passed since the last save.

    The clock is the chief's. In a job of several processes they meet before some of the calls of `save`: about as often
    as the number of calls between two saves can be halved.

    Example:
        >>> from replicax.checkpoint.policies import EverySeconds
        >>> EverySeconds(600.0).is_due(1)
        False
    """

    def __init__(self, seconds: float, *, clock: Callable[[], float] = time.monotonic):
        self.seconds, self._clock = checked_seconds("seconds", seconds), clock
        self._saved_at = self._looked_at = clock()
        self._left, self._calls = 1, 0  # calls until all look again, and since they did

    def is_due(self, step: int | None) -> bool:
        del step
        self._left, self._calls = self._left - 1, self._calls + 1
        if self._left > 0:
            return False
        now = self._clock()
        remaining, each = self._saved_at + self.seconds - now, (now - self._looked_at) / self._calls
        # All make the same number of calls until they look again: half of those that the remaining time is for.
        calls = 0 if remaining <= 0 else max(1, int(min(remaining / max(each, 1e-9) / 2, 2**20)))
        group = current_group()
        if len(group.members) > 1:
            calls = int(group.exchange("whether it is time to save", calls)[0])
        elif calls:
            calls = 1  # A look costs nothing.
        self._left, self._calls, self._looked_at = calls, 0, now
        return not calls

    def restart(self) -> None:
        self._saved_at = self._looked_at = self._clock()
        self._left, self._calls = 1, 0

    def get_state(self) -> PyTree:
        return [self._left, self._calls]

    def set_state(self, state: PyTree) -> None:
        self._left, self._calls = state


class CounterGrowth(SavePolicy):
    """Saves when a counter has grown by so much since the last save, and in the first call."""

    def __init__(self, count: Callable[[], int], growth: int):
        self._count, self._growth = count, growth
        self._last: int | None = None

    def is_due(self, step: int | None) -> bool:
        del step
        return self._last is None or self._count() >= self._last + self._growth

    def restart(self) -> None:
        self._last = self._count()

    def get_state(self) -> PyTree:
        return self._last

    def set_state(self, state: PyTree) -> None:
        self._last = state


class Improved(SavePolicy):
    """Saves when a measure is better than at any save before, and in the first call.

    A manager that restores goes on from the best that the checkpoints in its directory have noted.

    Args:
        measure: A function without arguments that returns a number, or a variable; all processes have it, and the
            chief's counts.
        highest: Whether the highest is the best.

    Example:
        >>> from replicax.checkpoint.policies import Improved
        >>> loss = rx.Variable(2.0)
        >>> policy = Improved(loss, highest=False)
        >>> policy.is_due(1), policy.restart()
        (True, None)
        >>> _ = loss.assign(3.0)
        >>> policy.is_due(2)
        False
    """

    def __init__(self, measure: Measure, *, highest: bool = True):
        self._measure, self._sign = _checked_measure(measure), 1.0 if highest else -1.0
        self._best: float | None = None  # at the saves so far
        self._now = -np.inf
        self._is_taken = False

    def take(self) -> None:
        """Notes that a manager has this policy: what it knows is of that one's training."""
        if self._is_taken:
            raise ArgumentError("An Improved belongs to one CheckpointManager: give each its own Improved(...).")
        self._is_taken = True

    def note(self) -> float | None:
        """Returns the measure at the best save so far, of which the checkpoint is one."""
        return self._sign * self._best if self._best is not None and np.isfinite(self._best) else None

    def go_on_from(self, noted: object) -> None:
        """Takes into account what an earlier run has noted in a checkpoint."""
        if isinstance(noted, float):
            self._best = max(-np.inf if self._best is None else self._best, self._sign * noted)

    def is_due(self, step: int | None) -> bool:
        del step
        own = self._sign * _number(self._measure)
        own = -np.inf if np.isnan(own) else own
        self._now = float(current_group().exchange("whether a measure has improved", own)[0])
        return self._best is None or self._now > self._best

    def restart(self) -> None:
        self._best = self._now if self._best is None else max(self._best, self._now)

    def get_state(self) -> PyTree:
        return [self._best, self._now]

    def set_state(self, state: PyTree) -> None:
        self._best, self._now = state


class Newest(KeepPolicy):
    """Keeps the newest `number` checkpoints, among them the new one; None keeps all.

    Example:
        >>> from replicax.checkpoint.policies import Newest
        >>> Newest(3).number
        3
    """

    def __init__(self, number: int | None = 3):
        self.number = None if number is None else checked_int("number", number, least=1)

    def kept(self, saved: Sequence[NumberedCheckpoint]) -> list[int]:
        return [each.number for each in (saved if self.number is None else saved[-self.number :])]


class Best(KeepPolicy):
    """Keeps the best `number` checkpoints by a measure at the time of their saves, which they have among their notes.

    Args:
        number: How many.
        measure: A function without arguments that returns a number, or a variable; the chief's counts.
        highest: Whether the highest is the best.
        name: The name of the measure in the checkpoints. Those that lack it are kept, too.

    Example:
        >>> from replicax.checkpoint.policies import Best
        >>> Best(2, lambda: 0.5, name="accuracy").name
        'accuracy'
    """

    def __init__(self, number: int, measure: Measure, *, highest: bool = True, name: str = "measure"):
        self.number, self.name = checked_int("number", number, least=1), name
        self._measure, self._sign = _checked_measure(measure), 1.0 if highest else -1.0

    def value(self) -> float:
        """Returns the measure as it is now."""
        return _number(self._measure)

    def kept(self, saved: Sequence[NumberedCheckpoint]) -> list[int]:
        def goodness(each: NumberedCheckpoint) -> tuple[float, int]:
            value = each.notes.get(self.name)
            return self._sign * value if isinstance(value, float) and value == value else -np.inf, each.number

        noted = [each for each in saved if self.name in each.notes]
        worst = sorted(noted, key=goodness)[: -self.number]  # Unknown is not worst.
        return [each.number for each in saved if each not in worst]


class EveryHours(KeepPolicy):
    """Keeps a checkpoint for good that no other policy keeps any more, if the last such one is so many hours older.

    The hours begin when the manager is made; a file `kept.json` beside the checkpoints lets a later run go on with it.

    Example:
        >>> from replicax.checkpoint.policies import EveryHours
        >>> EveryHours(12).hours
        12.0
    """

    def __init__(self, hours: float):
        self.hours = checked_hours("hours", hours)

    def kept(self, saved: Sequence[NumberedCheckpoint]) -> list[int]:
        return []  # `checkpoint_folder.PermanentCheckpoints` decides, when the others have.


def checked_hours(name: str, hours: float) -> float:
    """Returns a number of hours that a user has given as the argument `name`."""
    if not is_real(hours) or not hours > 0:
        raise ArgumentError(f"`{name}` is a number above 0, got {hours!r:.100}.")
    return float(hours)


def _checked_measure(measure: Measure) -> Measure:
    if not callable(measure) and not is_variable(measure):
        raise ArgumentError(f"`measure` is a function without arguments, or a variable, got {measure!r:.100}.")
    return measure


def _number(measure: Measure) -> float:
    try:
        found = np.asarray(measure() if callable(measure) else array_of(measure))
    except Exception as error:
        raise ArgumentError(f"The `measure` of a policy failed: {type(error).__name__}: {error}") from error
    if found.size != 1 or found.dtype.kind not in "iufb":
        raise ArgumentError(f"`measure` is one number, got {found!r:.100}.")
    return float(found.reshape(()))


def listed(given: object, kind: type, argument: str) -> list[object]:
    """Returns the policies that a user has given: one, or several."""
    found = list(given) if isinstance(given, Sequence) else [given]
    wrong = [each for each in found if not isinstance(each, kind)]
    if wrong or not found:
        raise ArgumentError(
            f"`{argument}` is a {kind.__name__} of rx.checkpoint.policies, or a list of them, got {given!r:.100}."
        )
    return found


def notes_of(policies: Sequence[object]) -> Mapping[str, Callable[[], float | None]]:
    """Returns what checkpoints note for policies, by name."""
    found: dict[str, Callable[[], float | None]] = {}
    for each in policies:
        if isinstance(each, Best):
            if each.name in found:
                raise ArgumentError(f"Two measures are called {each.name!r}: give each Best(..., name=...) its own.")
            found[each.name] = each.value
    for i, policy in enumerate(_improved(policies)):
        policy.take()
        found[f"{_IMPROVED}{i}"] = policy.note
    return found


def go_on_from(policies: Sequence[object], saved: Iterable[NumberedCheckpoint]) -> None:
    """Lets policies know what the checkpoints of a training have noted for them."""
    improved = _improved(policies)
    for each in saved if improved else ():
        notes = each.notes
        for i, policy in enumerate(improved):
            policy.go_on_from(notes.get(f"{_IMPROVED}{i}"))


def _improved(policies: Iterable[object]) -> list[Improved]:
    return [each for each in policies if isinstance(each, Improved)]
