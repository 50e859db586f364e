"""Following a training: each checkpoint that appears is visited once, until the training has ended.

`decide` is a pure function; `Follower` looks, waits and visits as it says.
"""

from __future__ import annotations

import dataclasses
import enum
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from replicax.checkpoint.places import Place

_log = logging.getLogger(__name__)
_SECONDS_BETWEEN_WORDS = 600.0  # of the log, while it waits


@dataclasses.dataclass(frozen=True)
class Found:
    """A checkpoint."""

    path: Place
    step: int | None  # None if it is unknown
    version: tuple[int, ...] = ()  # time of writing and size of a file that may be written again; empty for others

    @property
    def name(self) -> str:
        """Name of the file or folder."""
        return self.path.name


class Outcome(enum.Enum):
    """The end of a visit: it is done; the checkpoint is gone; or it may be half-written, and is to be tried again."""

    DONE = "done"
    GONE = "gone"
    LATER = "later"


@dataclasses.dataclass(frozen=True)
class Rules:
    """When checkpoints are visited, and when the following ends."""

    poll_s: float = 1.0  # between looks
    start_delay_s: float = 0.0  # before the first look
    # At least from the start of a visit to that of the next; then the newest checkpoint is visited, and older ones are
    # left out. With 0 each is visited, in order.
    throttle_s: float = 0.0
    idle_timeout_s: float | None = None  # without a new checkpoint until it ends; None for never
    max_visits: int | None = None  # until it ends; None for any number
    last_step: int | None = None  # of the training; None if it is unknown. Its checkpoint waits for no throttle.


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far it is; times are those of one monotonic clock."""

    began: float
    news: float  # end of the last visit; `began` before the first
    visits: int = 0
    visit_began: float | None = None  # the last visit
    step: int | None = None  # the highest that was visited


class Visit(NamedTuple):
    """Visit a checkpoint; the ones before it are left out."""

    found: Found
    left_out: tuple[Found, ...] = ()


class Wait(NamedTuple):
    """Look again after so many seconds."""

    seconds: float


class End(NamedTuple):
    """Nothing more is to be done."""

    why: str  # as a part of a sentence
    idle: bool = False  # Nothing came for too long.


def decide(rules: Rules, progress: Progress, new: Sequence[Found], now: float) -> Visit | Wait | End:
    """Returns what to do next."""
    if rules.max_visits is not None and progress.visits >= rules.max_visits:
        return End(f"{rules.max_visits} checkpoint(s) have been evaluated")
    if _reaches(progress.step, rules.last_step):
        return End(f"the checkpoint of step {progress.step} has been evaluated, and the training ends there")
    start = progress.began + rules.start_delay_s
    if now < start:
        return Wait(start - now)
    if not new:
        idle = now - max(progress.news, start)
        if rules.idle_timeout_s is None or idle < rules.idle_timeout_s:
            return Wait(rules.poll_s)
        return End(f"no new checkpoint has come for {rules.idle_timeout_s:g} s", idle=True)
    if not rules.throttle_s:
        return Visit(new[0])
    next_visit = now if progress.visit_began is None else progress.visit_began + rules.throttle_s
    if now < next_visit and not _reaches(new[-1].step, rules.last_step):
        return Wait(min(rules.poll_s, next_visit - now))
    return Visit(new[-1], tuple(new[:-1]))


def _reaches(step: int | None, last: int | None) -> bool:
    return step is not None and last is not None and step >= last


class Follower:
    """Visits the checkpoints of a training as they appear."""

    def __init__(
        self,
        look: Callable[[], Sequence[Found]],
        visit: Callable[[Found], Outcome],
        rules: Rules,
        where: object,
        *,
        done: Iterable[Found] = (),
        last_step: Callable[[], int | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ):
        self.rules = rules  # may be replaced before `run`
        self._look, self._visit, self._where = look, visit, where
        self._done, self._last_step = set(done), last_step
        self._clock, self._sleep = clock, sleep
        self.progress = Progress(clock(), clock(), step=_highest(self._done))

    def run(self) -> End:
        """Visits checkpoints until the rules say that it ends, and returns why."""
        now = self._clock()
        self.progress = dataclasses.replace(self.progress, began=now, news=now)
        said = now
        while True:
            told = self._last_step()  # None if the training is not known to have ended
            rules = self.rules if told is None else dataclasses.replace(self.rules, last_step=told)
            new = [found for found in self._look() if found not in self._done]
            action = decide(rules, self.progress, new, now := self._clock())
            if isinstance(action, End):
                return action
            if isinstance(action, Visit):
                self._visited(action, now)
                said = now
                continue
            if now - said >= _SECONDS_BETWEEN_WORDS:
                _log.warning("%s", self._waiting_for(now))
                said = now
            self._sleep(action.seconds)

    def _visited(self, action: Visit, now: float) -> None:
        outcome = self._visit(action.found)
        if outcome is Outcome.LATER:
            self._sleep(self.rules.poll_s)
            return
        self._done.update((action.found, *action.left_out))
        if action.left_out:
            _log.info("Left out, for %s is newer: %s.", action.found.name, ", ".join(f.name for f in action.left_out))
        if outcome is Outcome.DONE:
            before = self.progress
            self.progress = dataclasses.replace(
                before,
                news=self._clock(),
                visits=before.visits + 1,
                visit_began=now,
                step=max((step for step in (before.step, action.found.step) if step is not None), default=None),
            )

    def _waiting_for(self, now: float) -> str:
        seen = "none has come yet" if self.progress.step is None else f"the last was of step {self.progress.step}"
        until = "" if self.rules.last_step is None else f", and the training ends with step {self.rules.last_step}"
        waited = now - self.progress.news
        return f"Waiting for a checkpoint in {self._where} for {waited:.0f} s: {seen}{until}."


def _highest(found: Iterable[Found]) -> int | None:
    return max((each.step for each in found if each.step is not None), default=None)
