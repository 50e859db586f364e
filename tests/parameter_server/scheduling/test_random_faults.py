"""What follows from whatever happens: random faults in a world of simulated time, without threads or processes."""

from __future__ import annotations

import functools
import heapq
import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from replicax.errors import ParameterServerLost, WorkerLostError
from replicax.parameter_server.actors.messages import Done, Report, ServerLost, UnexpectedBatch
from replicax.parameter_server.scheduling.actions import (
    EndActor,
    NoteIdle,
    NoteReport,
    PingActor,
    RecoverServers,
    RetraceStep,
    SendStep,
    SetError,
    SetResult,
    StartWorker,
)
from replicax.parameter_server.scheduling.events import (
    ActorGone,
    ErrorRaised,
    Event,
    PingAnswered,
    QuietBegan,
    QuietEnded,
    Recovered,
    RecoveryWaitEnded,
    RecoveryWanted,
    Retraced,
    Scheduled,
    ServerStarting,
    StepAnswered,
    StepFailed,
    Tick,
    WorkerGone,
    WorkerStarted,
)
from replicax.parameter_server.scheduling.ledger import Attempt, Ledger
from replicax.parameter_server.scheduling.machine import next_state
from replicax.parameter_server.scheduling.state import SchedulerState
from replicax.parameter_server.scheduling.watch import SERVER, WORKER, ActorId
from replicax.ray_cluster.deadline import PATIENCE

STALL, START, TICK = 4.0, 30.0, 0.25
LONGEST = 2000.0  # simulated seconds: then it hangs


DONE = Done([], {}, {}, {}, 0, 0)
REPORT = Report("node", 0, "cpu", set_up=0)


class Closure:
    def __init__(self, name: str):
        self.name, self.done = name, 0
        self.errors: list[BaseException] = []


class Actor:
    """A process: its state is "starting", "alive" or "dead", and it may be stopped besides."""

    def __init__(self) -> None:
        self.state, self.is_stopped = "starting", False
        self.waiting: list[Callable[[], None]] = []  # what goes on when it comes up, goes on or dies

    @property
    def works(self) -> bool:
        return self.state == "alive" and not self.is_stopped

    def changed(self) -> None:
        waiting, self.waiting = self.waiting, []
        for go_on in waiting:
            go_on()


class Clock:
    """Simulated time: what is to happen, in order."""

    def __init__(self, seed: int):
        self.rng = random.Random(seed)
        self.time, self._order = 0.0, itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.time + seconds, next(self._order), event))

    def soon(self, event: Callable[[], None]) -> None:
        self.after(self.rng.uniform(0.001, 0.5), event)

    def run(self, until: Callable[[], bool]) -> None:
        next_tick = self.time
        while not until():
            if not self._events or self._events[0][0] > next_tick:
                self.time = next_tick
                self.tell(Tick(self.time))
                next_tick += TICK
                assert self.time < LONGEST, self.set_ups()
            else:
                self.time, _, event = heapq.heappop(self._events)
                event()

    def run_for(self, seconds: float) -> None:
        end = self.time + seconds
        self.run(lambda: self.time > end)


class World(Clock):
    """Workers and servers that do what the machine decides, in their own time; faults come at random."""

    def __init__(self, seed: int, workers: int = 3, servers: int = 2, max_staleness: int | None = None):
        super().__init__(seed)
        self.actors: dict[ActorId, Actor] = {ActorId(WORKER, i): Actor() for i in range(workers)}
        for server in range(servers):
            self.start_server(server, at_once=True)
        for worker in range(workers):
            self.actors[ActorId(WORKER, worker)].state = "dead"
        self.closures: list[Closure] = []
        self.recoveries = 0
        self.is_recovering = False
        self.state = SchedulerState.of(
            Ledger.of(workers, max_staleness=max_staleness), servers, PATIENCE._replace(start=START, stall=STALL)
        )

    def run_all(self) -> None:
        self.run(lambda: self.state.is_idle or self.state.error is not None)

    def set_ups(self) -> str:
        ledger = self.state.ledger
        return (
            f"queued {ledger.queued}, under way {ledger.under_way}, ready {ledger.ready}, phase "
            f"{self.state.phase}, {[(str(w), a.state, a.is_stopped) for w, a in self.actors.items()]}"
        )

    def tell(self, event: Event) -> None:
        self.state, actions = next_state(self.state, event)
        for action in actions:
            self.act(action)

    def act(self, action: Any) -> None:
        match action:
            case SendStep(attempt):
                self.send(attempt)
            case PingActor(actor, life):
                self.ping(actor, life)
            case StartWorker(actor, life):
                self.start(actor, life)
            case EndActor(actor, life, why):
                self.end(actor, life, why)
            case RecoverServers(reason):
                self.recover(reason)
            case RetraceStep(attempt, _):
                self.retrace(attempt)
            case SetResult(attempt, _):
                attempt.closure.done += 1
            case SetError(closure, error):
                closure.errors.append(error)
            case NoteReport() | NoteIdle():
                pass
            case _:
                raise AssertionError(action)

    # What is ordered.

    def start(self, who: ActorId, life: int) -> None:
        if self.rng.random() < 0.05:
            self.soon(lambda: self.tell(ActorGone(who, life, "no room")))
            return
        self.kill(who)
        actor = self.actors[who] = Actor()
        self.soon(lambda: self.tell(WorkerStarted(who, life, 0)))
        self.after(self.rng.uniform(0.5, 6), lambda: self.comes_up(actor))

    def comes_up(self, actor: Actor) -> None:
        if actor.state == "starting" and not actor.is_stopped:
            actor.state = "alive"
            actor.changed()
        elif actor.state == "starting":
            actor.waiting.append(lambda: self.comes_up(actor))

    def start_server(self, server: int, at_once: bool = False) -> None:
        actor = self.actors[ActorId(SERVER, server)] = Actor()
        if at_once:
            actor.state = "alive"
        else:
            self.after(self.rng.uniform(0.5, 6), lambda: self.comes_up(actor))

    def ping(self, who: ActorId, life: int) -> None:
        self.answer_ping(who, life, self.actors[who])

    def answer_ping(self, who: ActorId, life: int, actor: Actor) -> None:
        if actor.state == "dead":
            self.soon(lambda: self.tell(ActorGone(who, life, "dead")))
        elif actor.works:
            report = REPORT if who.job == WORKER else None
            self.soon(lambda: self.tell(PingAnswered(who, life, report)))
        else:
            actor.waiting.append(lambda: self.answer_ping(who, life, actor))

    def end(self, who: ActorId, life: int, why: str) -> None:
        actor = self.actors[who]

        def killed() -> None:
            if self.actors[who] is actor:
                self.kill(who)
            if self.rng.random() < 0.9:  # Else nobody hears of it.
                self.tell(ActorGone(who, life, why))

        self.soon(killed)

    def send(self, attempt: Attempt) -> None:
        actor = self.actors[ActorId(WORKER, attempt.worker)]
        self.after(self.rng.uniform(0.01, 1), lambda: self.compute(attempt, actor))

    def compute(self, attempt: Attempt, actor: Actor) -> None:
        servers = [self.actors[who] for who in self.actors if who.job == SERVER]
        if actor.state == "dead":
            self.soon(lambda: self.tell(StepAnswered(attempt, WorkerGone("dead"))))
        elif actor.is_stopped:
            actor.waiting.append(lambda: self.compute(attempt, actor))
        elif any(server.state == "dead" for server in servers):
            self.soon(lambda: self.tell(StepAnswered(attempt, ServerLost("gone"))))
        elif stopped := [server for server in servers if not server.works]:
            go_on = lambda: self.after(0.01, lambda: self.compute(attempt, actor))  # noqa: E731
            stopped[0].waiting.append(go_on)
            actor.waiting.append(go_on)
        elif self.rng.random() < 0.1:
            self.soon(lambda: self.tell(StepAnswered(attempt, UnexpectedBatch(0))))
        else:
            self.soon(lambda: self.tell(StepAnswered(attempt, DONE)))

    def retrace(self, attempt: Attempt) -> None:
        actor = self.actors[ActorId(WORKER, attempt.worker)]

        def ask() -> None:
            servers = [self.actors[who] for who in self.actors if who.job == SERVER]
            if actor.state == "dead":
                self.tell(Retraced(attempt, WorkerLostError("asked in vain")))
            elif actor.is_stopped:
                actor.waiting.append(ask)
            elif any(server.state == "dead" for server in servers):
                self.tell(Retraced(attempt, ParameterServerLost("gone")))
            else:
                self.tell(Retraced(attempt, None))

        self.soon(ask)

    def recover(self, reason: str) -> None:
        assert not self.is_recovering
        assert self.state.ledger.under_way == 0
        self.is_recovering = True
        self.recoveries += 1

        def replace() -> None:
            lost = [who for who in self.actors if who.job == SERVER and not self.actors[who].works]
            for who in lost:
                if self.actors[who].state == "starting" and not self.actors[who].is_stopped:
                    continue
                self.kill(who)
                self.start_server(who.index)
                self.tell(ServerStarting(who))
            if lost:
                self.after(1, replace)
            else:
                self.soon(restored)

        def restored() -> None:
            self.is_recovering = False
            self.tell(Recovered(None))

        self.soon(replace)

    # Faults.

    def kill(self, who: ActorId) -> None:
        self.actors[who].state, self.actors[who].is_stopped = "dead", False
        self.actors[who].changed()

    def strike(self) -> None:
        who = self.rng.choice(list(self.actors))
        actor = self.actors[who]
        if actor.state == "dead":
            return
        if self.rng.random() < 0.5:
            self.kill(who)
            return
        actor.is_stopped = True
        if self.rng.random() < 0.5:
            self.after(self.rng.uniform(0.1, 3 * STALL), lambda: self.go_on(actor))

    def go_on(self, actor: Actor) -> None:
        if actor.state != "dead":
            actor.is_stopped = False
            actor.changed()

    def be_quiet(self, thread: int) -> None:
        """Somebody wants nothing to be under way for a moment, and may find that a server is lost."""
        self.tell(QuietBegan(thread))

        def look() -> None:
            if not self.state.is_quiet(for_helper=False):
                self.after(0.1, look)
            elif self.rng.random() < 0.5:
                self.tell(RecoveryWanted(thread, "gone"))
                self.after(0.1, wait)
            else:
                self.soon(lambda: self.tell(QuietEnded(thread)))

        def wait() -> None:
            if self.state.is_recovering:
                self.after(0.1, wait)
                return
            self.tell(RecoveryWaitEnded(thread))
            self.tell(QuietEnded(thread))

        self.soon(look)

    def add(self, count: int) -> None:
        for _ in range(count):
            self.closures.append(Closure(f"step{len(self.closures)}"))
            self.tell(Scheduled(self.closures[-1]))


def random_training(seed: int) -> World:
    """Three times up to two faults, while steps are under way or all are idle; then some steps more."""
    rng = random.Random(f"plan {seed}")
    staleness = rng.choice([None, None, 0, 2])
    world = World(seed, workers=rng.randint(1, 4), servers=rng.randint(1, 3), max_staleness=staleness)
    for number in range(3):
        at = rng.uniform(0, 15)
        for _ in range(rng.randint(0, 2)):
            world.after(at + rng.choice([0, rng.uniform(0, 8)]), world.strike)
        if rng.random() < 0.3:
            world.after(at, functools.partial(world.be_quiet, number))
        if rng.random() < 0.5:
            world.add(rng.randint(1, 15))
            world.run_all()
        else:  # All are idle when it comes.
            world.run_for(20)
    world.add(5)
    world.run_all()
    return world


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.nightly) for part in range(1, 4))])
def test_whatever_fails_two_at_once_every_step_is_done_once(part):
    for seed in range(part * 500, part * 500 + 500):
        try:
            world = random_training(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error
        assert world.state.error is None, seed
        assert world.state.fatal is None, seed
        assert [closure.done for closure in world.closures] == [1] * len(world.closures), seed
        assert not any(closure.errors for closure in world.closures), seed


def test_all_come_back_also_when_nobody_has_anything_to_do():
    for seed in range(200):
        world = World(seed)
        world.run_for(15)
        world.strike()
        world.strike()
        world.run_for(100)
        assert world.state.ledger.ready == {0, 1, 2}, seed
        assert all(actor.works for actor in world.actors.values()), seed


def test_an_application_error_ends_what_is_queued_and_then_it_goes_on():
    world = World(0)
    world.add(1)
    error = ValueError("mine")
    world.run(lambda: world.state.ledger.under_way > 0)
    (running,) = [each for worker in world.state.ledger.running for each in worker]
    world.tell(StepAnswered(running.attempt, StepFailed(error)))
    assert world.state.error is error
    world.add(3)
    assert [len(closure.errors) for closure in world.closures] == [1, 1, 1, 1]
    world.tell(ErrorRaised())
    world.add(3)
    world.run(lambda: world.state.is_idle)
    assert [closure.done for closure in world.closures] == [0, 0, 0, 0, 1, 1, 1]
