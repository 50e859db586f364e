"""Whatever workers do, no alarm comes earlier than the time-out after something has really changed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import replicax.group.health.status as status
import replicax.runtime.activity as phases
import replicax.runtime.calls as calls
from replicax.group.health.diagnosis import Diagnosis, Limits, ProblemKind, WorkerObservation, diagnose
from replicax.runtime.activity import SLOW_PHASES, START, WAITING_PHASES, Activity, exchange, now, phase
from replicax.runtime.calls import Calls

STALL, SLOW = 10.0, 25.0
LIMITS = Limits(STALL, SLOW)
UPTIME = 3749.7  # what `time.monotonic` says when the first worker starts


class Result:
    """An array that the devices compute."""

    ready = False

    def is_ready(self) -> bool:
        return self.ready


class Worker:
    """The flags of one worker, which take the place of this process's while it does something."""

    def __init__(self, time: float):
        self.flags = {name: getattr(Activity(), name) for name in Activity.__slots__} | {"thread": now.thread}
        self.flags["at"] = (START, time)
        self.open: list[Any] = []
        self.result: Result | None = None
        self.changed = time
        self.moved = 0.0

    def does(self, action: str, name: str) -> None:
        """Begins or ends something; does nothing if there is nothing to end."""
        if action == "phase":
            self._enter(phase(name))
        elif action == "exchange":
            self._enter(exchange())
        elif action == "call":
            self.result = Result()
            self._enter(Calls(name, shared=True).one()).sent(self.result)
        elif action == "moves":
            now.moved = self.moved = phases.monotonic()
        elif action == "ready" and self.result is not None:
            self.result.ready = True
        elif self.open:
            self.open.pop().__exit__(None, None, None)

    def _enter(self, context: Any) -> Any:
        self.open.append(context)
        return context.__enter__()


class World:
    """Some workers, one clock, and what a monitor that asks them at any time would say."""

    def __init__(self, workers: int):
        self.time = UPTIME
        self.workers = [Worker(self.time) for _ in range(workers)]

    def act(self, index: int, action: str, name: str) -> None:
        worker = self.workers[index]
        self._become(worker)
        before = now.at, now.calls, now.computes()
        worker.does(action, name)
        self._keep(worker)
        if before != (now.at, now.calls, now.computes()):  # What its other threads do is no progress of the script.
            worker.changed = self.time

    def look(self) -> Diagnosis | None:
        seen = []
        for i, worker in enumerate(self.workers):
            self._become(worker)
            seen.append(WorkerObservation(f"worker:{i}", "", status.status_of()))
            self._keep(worker)
        return diagnose(seen, LIMITS)

    def _keep(self, worker: Worker) -> None:
        worker.flags = {name: getattr(now, name) for name in Activity.__slots__}

    def _become(self, worker: Worker) -> None:
        for name, value in worker.flags.items():
            setattr(now, name, value)


_NAMES = st.sampled_from(sorted(SLOW_PHASES | WAITING_PHASES | {"input", "callback", "idle"}))
_ACTIONS = st.sampled_from(["phase", "phase", "end", "end", "call", "ready", "exchange", "moves"])
_EVENTS = st.tuples(st.floats(0.0, 2 * STALL), st.integers(0, 2), _ACTIONS, _NAMES)


@pytest.fixture
def own_flags() -> Any:
    before = {name: getattr(now, name) for name in Activity.__slots__}
    yield
    for name, value in before.items():
        setattr(now, name, value)


@settings(max_examples=300)
@given(st.integers(2, 3), st.lists(_EVENTS, max_size=30), st.floats(0.0, 3 * SLOW))
def _no_early_alarm(workers: int, events: list[tuple[float, int, str, str]], rest: float) -> None:
    world = World(workers)
    clock = lambda: world.time  # noqa: E731
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(phases, "monotonic", clock)
        patch.setattr(calls, "monotonic", clock)
        patch.setattr(status.time, "monotonic", clock)
        for pause, index, action, name in [*events, (rest, 0, "end", "")]:
            world.time += pause
            check(world)
            world.act(index % workers, action, name)
            check(world)


def check(world: World) -> None:
    alarm = world.look()
    if alarm is not None:
        quiet = [world.time - world.workers[i].changed for i in alarm.culprits]
        assert min(quiet) >= STALL - 1e-6, (alarm, quiet)
        everyone = [world.time - worker.changed for worker in world.workers]
        if alarm.kind is ProblemKind.DEADLOCK and min(everyone) < SLOW:  # No bytes have moved anywhere.
            still = [world.time - worker.moved for worker in world.workers]
            assert min(still) >= STALL - 1e-6, (alarm, still)


def test_no_alarm_comes_earlier_than_the_time_out_after_a_change(own_flags: None):
    _no_early_alarm()
