"""Random histories of an attempt at a job, against what must hold in every state."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from replicax.errors.exit_codes import ExitCode
from replicax.group.membership.launcher_news import ElasticRange
from replicax.job.options import Options
from replicax.job.processes.events import (
    CallReturned,
    ClusterLeft,
    FoundSilent,
    MemberNews,
    ScriptEnded,
    SignalReceived,
    Started,
    TaskRun,
    WaitingForOthers,
)
from replicax.job.supervision.actions import Action, Kill, Send, StartAgain, TellEnding
from replicax.job.supervision.machine import next_state
from replicax.job.supervision.run_job import JobPolicy
from replicax.job.supervision.state import Ended, Event, JobState, Tick
from tests.job.supervision.attempt import PID, worker

CODES = [0, 0, 1, 1, 2, 70, 71, 72, 75, 137, 137]
WORDS = ["", "ValueError: a", "ValueError: b", "TimeoutError: nobody"]
MOST = 4


class CheckedAttempt(RuleBasedStateMachine):
    """The machine with a runner that carries everything out, and what holds in every state."""

    @initialize(
        kind=st.sampled_from(["fixed", "islands", "elastic", "elsewhere"]),
        workers=st.integers(1, 3),
        restarts=st.sampled_from([None, 0, 1, 3]),
        evaluator=st.booleans(),
    )
    def begin(self, kind: str, workers: int, restarts: int | None, evaluator: bool) -> None:
        more: dict[str, Any] = {
            "fixed": {"workers": workers},
            "islands": {"workers": workers, "islands": True, "min_workers": 1},
            "elastic": {"workers": workers, "elastic": ElasticRange(1, MOST)},
            "elsewhere": {"workers": workers, "elastic": ElasticRange(1, MOST)},
        }[kind]
        policy = JobPolicy.of(Options("train.py", restarts=restarts, **more))
        self.state = JobState(policy.workers, policy.losses, policy.grace, policy.patience, now=100.0)
        self.alive: list[TaskRun] = []  # the processes, as their runner knows them
        self.world = 0
        self.is_elsewhere, self.ended = kind == "elsewhere", set[TaskRun]()
        for run in [*map(worker, range(policy.workers)), *[TaskRun("evaluator", 0)] * (evaluator and workers > 1)]:
            self.start(run)

    def start(self, run: TaskRun) -> None:
        assert run not in self.alive, f"{run} runs already."
        self.alive.append(run)
        waits = self.is_elsewhere and run.type == "worker"
        self.tell(Started(run, 0, waits=True) if waits else Started(run, PID))

    def tell(self, event: Event) -> None:
        self.state, actions = next_state(self.state, event)
        for action in actions:
            self.check(action)

    def check(self, action: Action) -> None:
        match action:
            case Send(run, _) | Kill(run):
                assert run in self.alive
                self.ended.add(run)
            case StartAgain(run):
                assert not self.state.failures
                assert not self.state.signal
                self.start(run)
            case TellEnding():
                assert self.state.failures or self.state.signal

    # What happens.

    @rule(seconds=st.sampled_from([0.05, 0.2, 2.0, 6.0, 31.0, 61.0]))
    def wait(self, seconds: float) -> None:
        """Time passes: the runner wakes whenever something is due."""
        end = self.state.now + seconds
        for _ in range(100):
            if self.state.due > end or self.state.is_over:
                break
            self.state = self.state.at(max(self.state.due, self.state.now))
            self.tell(Tick())
        else:
            raise AssertionError("The runner wakes again and again.")
        self.state = self.state.at(end)
        self.tell(Tick())

    @property
    def begun(self) -> list[TaskRun]:
        """The tasks that have a process."""
        return [run for run in self.alive if run not in self.state.waiting_workers]

    @precondition(lambda self: self.begun)
    @rule(data=st.data(), code=st.sampled_from(CODES), words=st.sampled_from(WORDS), told=st.booleans())
    def end(self, data: st.DataObject, code: int, words: str, told: bool) -> None:
        run = data.draw(st.sampled_from(self.begun))
        self.alive.remove(run)
        has_left = code == 0 and data.draw(st.booleans())
        meets = data.draw(st.sampled_from([0, self.state.workers])) if code == 0 else 0
        said = ScriptEnded(run, code, self.state.now) if told and code else None
        self.tell(Ended(run, self.state.now, code, said, words, has_left, meets))

    @precondition(lambda self: set(self.state.waiting_workers) - self.ended)
    @rule(data=st.data())
    def find_room(self, data: st.DataObject) -> None:
        """A machine with room begins a worker that has waited."""
        run = data.draw(st.sampled_from([run for run in self.state.waiting_workers if run not in self.ended]))
        self.tell(Started(run, PID, "afar"))
        assert run in self.state.running_workers

    @precondition(lambda self: self.state.running_workers and self.is_elsewhere)
    @rule(data=st.data())
    def lose_machine(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from(self.state.running_workers))
        self.alive.remove(run)
        self.tell(Ended(run, self.state.now, ExitCode.PEER_LOST, is_lost=True))

    @precondition(lambda self: self.ended & set(self.state.waiting_workers))
    @rule(data=st.data())
    def end_waiting(self, data: st.DataObject) -> None:
        """The runner ends whoever gets a signal while it waits; that is no failure."""
        run = data.draw(st.sampled_from([run for run in self.state.waiting_workers if run in self.ended]))
        self.alive.remove(run)
        failures = self.state.failures
        self.tell(Ended(run, self.state.now, 143, is_lost=True))
        assert self.state.failures == failures

    @precondition(lambda self: self.begun)
    @rule(data=st.data(), which=st.integers(0, 5))
    def hear(self, data: st.DataObject, which: int) -> None:
        run = data.draw(st.sampled_from(self.begun))
        blames = data.draw(st.sampled_from([(), ("worker 0",), ("worker 2", "worker 1"), ("worker 9",)]))
        events: list[Event] = [
            WaitingForOthers(run, self.state.workers, watches=data.draw(st.booleans())),
            ClusterLeft(run),
            CallReturned(run),
            ScriptEnded(run, data.draw(st.sampled_from([1, 70, 71, 75])), self.state.now, blames),
            FoundSilent(run.name, run.life),
            MemberNews(run, leaving="preempted"),
        ]
        self.tell(events[which])

    @precondition(lambda self: self.begun and self.state.losses.is_elastic)
    @rule(data=st.data(), late=st.booleans())
    def meet(self, data: st.DataObject, late: bool) -> None:
        run = data.draw(st.sampled_from(self.begun))
        members = data.draw(st.lists(st.sampled_from([each for each in self.begun if each.type == "worker"] or [run])))
        self.world += not late
        self.tell(MemberNews(run, self.world, tuple((each.index, each.life) for each in members or [run])))

    @precondition(lambda self: not self.state.is_over)
    @rule(number=st.sampled_from([2, 2, 15, 10]))
    def get_a_signal(self, number: int) -> None:
        self.tell(SignalReceived(number))

    # What must hold.

    @invariant()
    def all_know_who_runs(self) -> None:
        if self.state.tasks or self.alive:
            assert set(self.state.running) == set(self.alive)

    @invariant()
    def each_worker_runs_once(self) -> None:
        names = [run.name for run in self.alive] + [run.name for _, run in self.state.members.waiting]
        if self.state.is_tolerant:
            assert len(names) == len(set(names))
            assert not self.state.losses.is_elastic or sum(name.startswith("worker") for name in names) <= MOST

    @invariant()
    def nobody_waits_for_a_training_that_is_done(self) -> None:
        over = self.state.members.is_done or self.state.signal or self.state.killed
        assert not over or set(self.state.waiting_workers) <= self.ended

    @invariant()
    def restarts_are_counted(self) -> None:
        assert self.state.members.revived <= self.state.losses.restarts

    @invariant()
    def what_has_failed_ends(self) -> None:
        """Whoever is left gets a signal and is killed in bounded time."""
        state = self.state
        if state.failures and state.running:
            assert state.killed or math.isfinite(state.due) or state.signal == 10

    @invariant()
    def the_exit_code_says_what_happened(self) -> None:
        state = self.state
        if not state.signal:
            assert (state.code == ExitCode.OK) == (not state.failures)
        first = state.first_failure
        if first is not None:
            earliest = min(state.failures, key=lambda failure: failure.time)
            assert first.task in (earliest.task, earliest.culprit)


CheckedAttempt.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestRandomHistories = CheckedAttempt.TestCase
