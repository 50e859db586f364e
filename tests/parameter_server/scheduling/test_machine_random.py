"""Random events against what must hold in every state of the scheduler."""

from __future__ import annotations

from typing import Any

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from replicax.errors import ParameterServerLost, WorkerLostError
from replicax.parameter_server.actors.messages import ServerLost, UnexpectedBatch
from replicax.parameter_server.scheduling.actions import (
    Action,
    RecoverServers,
    RetraceStep,
    SendStep,
    SetError,
    SetResult,
)
from replicax.parameter_server.scheduling.events import (
    ActorGone,
    Closed,
    ErrorRaised,
    Event,
    PingAnswered,
    QuietBegan,
    QuietEnded,
    Recovered,
    RecoveryInterrupted,
    RecoveryWaitEnded,
    RecoveryWanted,
    Retraced,
    Scheduled,
    SchedulerFailed,
    ServerStarting,
    StepAnswered,
    StepFailed,
    Tick,
    WorkerGone,
    WorkerStarted,
)
from replicax.parameter_server.scheduling.ledger import Attempt
from replicax.parameter_server.scheduling.machine import next_state
from replicax.parameter_server.scheduling.state import (
    Broken,
    Recovering,
    Serving,
)
from replicax.parameter_server.scheduling.watch import WORKER, ActorId
from tests.parameter_server.scheduling.test_machine import DONE, MINE, REPORT, Step, all_up

# Random events.


class CheckedMachine(RuleBasedStateMachine):
    """The machine, and the conditions that hold in every state."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.settled: dict[Step, list[Action]] = {}
        self.sends: dict[Step, int] = {}
        self.reasons: dict[Step, int] = {}  # how many times a step may be sent again
        self.sent: list[Attempt] = []  # each answer may come, and may come again
        self.retraces: list[Attempt] = []
        self.errors: list[BaseException] = []  # those of functions, in order
        self.raised: list[BaseException] = []
        self.recoveries = 0
        self.quiet: list[int] = []

    @initialize(workers=st.integers(1, 3), servers=st.integers(1, 2), staleness=st.sampled_from([None, None, 0, 2]))
    def begin(self, workers: int, servers: int, staleness: int | None) -> None:
        self.state = all_up(workers=workers, servers=servers, max_staleness=staleness, depth=2)

    def tell(self, event: Event) -> None:
        before, lost = self.state, self.given_back_by(event)
        self.state, actions = next_state(before, event)
        for step in lost:
            self.reasons[step] += 1
        for action in actions:
            self.check(action)
        assert before.is_ended or isinstance(event, (Closed, Tick)) or self.state.now == before.now

    def given_back_by(self, event: Event) -> list[Step]:
        """The steps that an event gives a reason to run again."""
        running = {each.attempt.id: each.attempt for worker in self.state.ledger.running for each in worker}
        match event:
            case ActorGone(actor, life, _) if actor.job == WORKER and self.state.watch.is_current(actor, life):
                return [each.closure for each in running.values() if each.worker == actor.index]
            case StepAnswered(attempt, WorkerGone()) if attempt.id in running:
                return [each.closure for each in running.values() if each.worker == attempt.worker]
            case StepAnswered(attempt, ServerLost()) | Retraced(attempt, _) if attempt.id in running:
                return [attempt.closure]
            case Tick(now):  # Nobody has heard of the end of these.
                over = self.state.watch.never_ended(now)
                return [each.closure for each in running.values() if ActorId(WORKER, each.worker) in over]
        return []

    def check(self, action: Action) -> None:
        ledger = self.state.ledger
        match action:
            case SendStep(attempt):
                assert isinstance(self.state.phase, Serving)
                assert not self.state.quiet
                assert self.state.error is None
                assert ledger.find(attempt) is not None
                assert attempt.closure not in self.settled
                self.sends[attempt.closure] = self.sends.get(attempt.closure, 0) + 1
                self.sent.append(attempt)
            case RetraceStep(attempt, _):
                self.retraces.append(attempt)
            case RecoverServers():
                assert ledger.under_way == 0
                assert isinstance(self.state.phase, Recovering)
                assert self.recoveries == 0, "Two recoveries at once."
                self.recoveries += 1
            case SetResult(attempt, _):
                self.settled.setdefault(attempt.closure, []).append(action)
            case SetError(closure, _):
                self.settled.setdefault(closure, []).append(action)

    # What must hold.

    @invariant()
    def no_step_is_lost_or_in_two_places(self) -> None:
        if not hasattr(self, "state"):
            return
        there = [*self.state.ledger.closures(), *self.settled]
        assert len(there) == len(set(there)) == self.count

    @invariant()
    def each_step_has_one_result_or_one_error(self) -> None:
        assert all(len(actions) == 1 for actions in self.settled.values())

    @invariant()
    def no_step_is_sent_again_without_a_reason(self) -> None:
        assert all(count <= self.reasons[step] for step, count in self.sends.items())

    @invariant()
    def an_error_is_raised_once_and_the_first_one_first(self) -> None:
        assert len(set(map(id, self.raised))) == len(self.raised)
        if self.raised and self.errors:
            mine = [error for error in self.raised if error in self.errors]
            assert mine == sorted(mine, key=self.errors.index)

    @invariant()
    def with_an_error_nothing_waits(self) -> None:
        if hasattr(self, "state") and self.state.error is not None:
            assert self.state.ledger.queued == 0

    @invariant()
    def what_waits_is_begun_as_soon_as_it_may_be(self) -> None:
        if not hasattr(self, "state") or not isinstance(self.state.phase, Serving) or self.state.quiet:
            return
        assert self.state.ledger.assign()[1] == ()


class Training(CheckedMachine):
    """Whatever happens, in whatever order: events that answer an action come late, twice, or never."""

    # What users do.

    @rule(count=st.integers(1, 4))
    def schedule(self, count: int) -> None:
        for _ in range(count):
            step = Step(f"step{self.count}")
            self.count += 1
            self.reasons[step] = 1
            self.tell(Scheduled(step))

    @precondition(lambda self: self.state.error is not None and self.state.ledger.under_way == 0)
    @rule()
    def raise_error(self) -> None:
        assert self.state.error is not None
        self.raised.append(self.state.error)
        self.tell(ErrorRaised())
        assert self.state.error is None

    @rule(thread=st.integers(1, 2))
    def begin_quiet(self, thread: int) -> None:
        self.quiet.append(thread)
        self.tell(QuietBegan(thread))

    @precondition(lambda self: bool(self.quiet))
    @rule()
    def end_quiet(self) -> None:
        self.tell(QuietEnded(self.quiet.pop()))

    @rule(thread=st.integers(1, 2))
    def want_recovery(self, thread: int) -> None:
        self.tell(RecoveryWanted(thread, "asked for"))

    @rule(thread=st.integers(1, 2))
    def wait_no_more(self, thread: int) -> None:
        self.tell(RecoveryWaitEnded(thread))

    # What workers answer, the newest or an old attempt.

    @precondition(lambda self: bool(self.sent))
    @rule(data=st.data(), what=st.sampled_from(["done", "done", "done", "failed", "batch", "server", "gone"]))
    def answer(self, data: st.DataObject, what: str) -> None:
        attempt = data.draw(st.sampled_from(self.sent))
        error = ValueError(f"error of {attempt}")
        answers: dict[str, Any] = {
            "done": DONE, "failed": StepFailed(error), "batch": UnexpectedBatch(3), "server": ServerLost("gone"),
            "gone": WorkerGone("dead"),
        }  # fmt: skip
        if what == "failed" and self.state.ledger.find(attempt) is not None:
            self.errors.append(error)
        self.tell(StepAnswered(attempt, answers[what]))

    @precondition(lambda self: bool(self.retraces))
    @rule(data=st.data(), error=st.sampled_from([None, None, ParameterServerLost("gone"), WorkerLostError("gone")]))
    def retraced(self, data: st.DataObject, error: BaseException | None) -> None:
        self.tell(Retraced(data.draw(st.sampled_from(self.retraces)), error))

    # What actors do, one or two at once.

    @rule(data=st.data(), both=st.booleans())
    def actors_go(self, data: st.DataObject, both: bool) -> None:
        for _ in range(1 + both):
            actor = data.draw(st.sampled_from(list(self.state.watch.actors)))
            life = self.state.watch[actor].life - data.draw(st.sampled_from([0, 0, 0, 1]))
            self.tell(ActorGone(actor, life, "dead"))

    @rule()
    def workers_come_up(self) -> None:
        self.tell(Tick(self.state.now + 3))
        for actor in self.state.watch.workers():
            life = self.state.watch[actor].life
            self.tell(WorkerStarted(actor, life, 0))
            self.tell(PingAnswered(actor, life, REPORT))

    @precondition(lambda self: self.recoveries == 1)
    @rule()
    def servers_come_back(self) -> None:
        for actor in self.state.watch.lost_servers():
            self.tell(ServerStarting(actor))
        self.recoveries = 0
        self.tell(Recovered(None))

    @precondition(lambda self: self.recoveries == 1 and isinstance(self.state.phase, Recovering))
    @rule()
    def servers_are_lost_again(self) -> None:
        phase = self.state.phase
        assert isinstance(phase, Recovering)
        self.recoveries = 0
        self.tell(RecoveryInterrupted(ParameterServerLost("gone again"), (0,)))
        given_up = phase.tries == 10 or self.state.now - phase.since > self.state.longest_wait
        assert self.recoveries == (0 if given_up else 1)
        assert isinstance(self.state.phase, Broken if given_up else Recovering)

    @rule(seconds=st.sampled_from([0.1, 1.0, 20.0]))
    def time_passes(self, seconds: float) -> None:
        self.tell(Tick(self.state.now + seconds))

    def teardown(self) -> None:
        """All come back and answer: then everything that was scheduled has a result, and whoever joins goes on."""
        if not hasattr(self, "state"):
            return
        while self.quiet:
            self.end_quiet()
        for _ in range(200):
            if self.state.error is not None and self.state.ledger.under_way == 0:
                self.raise_error()
            self.workers_come_up()
            for actor in self.state.watch.actors:
                self.tell(PingAnswered(actor, self.state.watch[actor].life, REPORT if actor.job == WORKER else None))
            for attempt in self.sent:
                self.tell(StepAnswered(attempt, DONE))
            for attempt in self.retraces:
                self.tell(Retraced(attempt, None))
            if self.recoveries:
                self.servers_come_back()
            if self.state.is_idle and self.state.error is None and not self.state.is_recovering:
                break
        assert self.state.is_idle, self.state
        assert len(self.settled) == self.count


class TrainingThatEnds(Training):
    """The same, and at any time the strategy is closed, or cannot go on."""

    @rule(how=st.sampled_from([Closed(), SchedulerFailed(MINE), Recovered(MINE)]))
    def ends(self, how: Event) -> None:
        self.tell(how)
        assert self.state.is_idle
        assert len(self.settled) == self.count, "Everybody who waits for a result is told."
        assert self.state.is_ended or self.state.fatal is not None

    def teardown(self) -> None:
        """Nothing is left, and nothing is begun any more."""
        if not hasattr(self, "state"):
            return
        self.tell(Closed())
        assert self.state.is_ended
        assert len(self.settled) == self.count
        assert next_state(self.state, Tick(self.state.now + 1)) == (self.state, ())


TestTraining = Training.TestCase
TestTraining.settings = settings(max_examples=150, stateful_step_count=40)
TestTrainingThatEnds = TrainingThatEnds.TestCase
TestTrainingThatEnds.settings = settings(max_examples=60, stateful_step_count=25)
