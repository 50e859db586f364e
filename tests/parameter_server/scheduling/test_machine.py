"""The machine: a table of its transitions, and random events against what must hold in every state."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from replicax.errors import CancelledError, ClusterTimeoutError, ParameterServerLost, WorkerLostError
from replicax.parameter_server.actors.messages import Done, Report, ServerLost, UnexpectedBatch
from replicax.parameter_server.scheduling.actions import (
    Action,
    EndActor,
    GiveUpServers,
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
    Closed,
    ErrorRaised,
    Event,
    PingAnswered,
    QuietBegan,
    QuietEnded,
    Recovered,
    RecoveryInterrupted,
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
from replicax.parameter_server.scheduling.ledger import Attempt, Ledger
from replicax.parameter_server.scheduling.machine import next_state
from replicax.parameter_server.scheduling.state import (
    Broken,
    Draining,
    Ended,
    Recovering,
    SchedulerState,
    Serving,
)
from replicax.parameter_server.scheduling.watch import SERVER, WORKER, ActorId, Stage
from replicax.ray_cluster import deadline

DONE = Done([], {}, {}, {}, 0, 0)
REPORT = Report("node", 7, "cpu", set_up=0)
PATIENCE = deadline.PATIENCE._replace(start=60.0, stall=10.0)
WORKERS = [ActorId(WORKER, 0), ActorId(WORKER, 1)]
PS = ActorId(SERVER, 0)
MINE = ValueError("mine")


class Step:
    """What is scheduled in place of a closure."""

    def __init__(self, name: str):
        self.name = name

    def __repr__(self) -> str:
        return self.name


A, B, C = Step("a"), Step("b"), Step("c")


def after(state: SchedulerState, *events: Event) -> SchedulerState:
    """The state after some events."""
    for event in events:
        state, _ = next_state(state, event)
    return state


def fresh(workers: int = 2, servers: int = 1, max_staleness: int | None = None, depth: int = 1) -> SchedulerState:
    """The state at the beginning: workers have not been started."""
    return SchedulerState.of(Ledger.of(workers, depth, max_staleness), servers, PATIENCE)


def all_up(**options: Any) -> SchedulerState:
    """A state in which all are up and nothing is to be done."""
    state = after(fresh(**options), Tick(0.0))
    for actor, record in state.watch.actors.items():
        if actor.job == WORKER:
            state = after(state, WorkerStarted(actor, record.life, 0))
        state = after(state, PingAnswered(actor, record.life, REPORT if actor.job == WORKER else None))
    return state


def attempt(id: int, worker: int, step: Any) -> Attempt:
    return Attempt(id, worker, step)


UP = all_up()
#: Both workers have a step, and one more is queued.
BUSY = after(UP, Scheduled(A), Scheduled(B), Scheduled(C))
#: The attempts in it.
ON_0, ON_1 = attempt(0, 0, A), attempt(1, 1, B)
QUIET = after(UP, QuietBegan(1))
GONE = ParameterServerLost("gone again")
#: Nothing is under way, and the server is gone.
RECOVERING = after(UP, ActorGone(PS, 1, "dead"))
DRAINING = after(BUSY, ActorGone(PS, 1, "dead"))
FAILED = after(BUSY, StepAnswered(ON_0, StepFailed(MINE)))
BROKEN = after(BUSY, SchedulerFailed(MINE))
RETRACING = after(BUSY, StepAnswered(ON_0, UnexpectedBatch(5)))

# Each row: what it is about, the state, the event, the actions, and what is different in the state afterwards.
TRANSITIONS: list[tuple[str, SchedulerState, Event, list[Action], dict[str, Any]]] = [
    ("workers are started at the first tick", fresh(), Tick(0.0),
     [*(StartWorker(worker, 1) for worker in WORKERS), PingActor(PS, 1)], {"phase": Serving()}),
    ("an idle training sends at once, and notes that all was done before", UP, Scheduled(A),
     [NoteIdle(), SendStep(ON_0)], {"under_way": 1}),
    ("a step waits where all workers are busy", after(UP, Scheduled(A), Scheduled(B)), Scheduled(C),
     [], {"under_way": 2, "queued": 1}),
    ("a result is kept, and the worker gets the next step", BUSY, StepAnswered(ON_1, DONE),
     [SetResult(ON_1, DONE), SendStep(attempt(2, 1, C))], {"under_way": 2, "queued": 0}),
    ("an answer that comes twice is ignored", after(BUSY, StepAnswered(ON_1, DONE)), StepAnswered(ON_1, DONE),
     [], {"under_way": 2}),
    ("the steps of a worker that has gone are run by another one, first", BUSY, ActorGone(WORKERS[0], 1, "dead"),
     [], {"under_way": 1, "queued": 2, "ready": {1}}),
    ("an answer tells that a worker has gone, too", BUSY, StepAnswered(ON_0, WorkerGone("dead")),
     [], {"under_way": 1, "queued": 2, "ready": {1}}),
    ("news of an earlier life is ignored", BUSY, ActorGone(WORKERS[0], 0, "dead"), [], {"under_way": 2}),
    ("a worker that has gone is started again", after(BUSY, ActorGone(WORKERS[0], 1, "dead")), Tick(0.05),
     [StartWorker(WORKERS[0], 2)], {}),
    ("another batch needs another program", BUSY, StepAnswered(ON_0, UnexpectedBatch(5)),
     [RetraceStep(ON_0, 5)], {"under_way": 2}),
    ("the worker then tries again", RETRACING, Retraced(ON_0, None), [SendStep(attempt(2, 0, A))], {"under_way": 2}),
    ("compiling fails", RETRACING, Retraced(ON_0, MINE), [SetError(A, MINE), SetError(C, MINE)],
     {"under_way": 1, "queued": 0, "error": MINE}),
    ("a server is lost while a step is compiled", RETRACING, Retraced(ON_0, ParameterServerLost("gone")),
     [], {"under_way": 1, "queued": 2, "phase": Draining("gone")}),
    ("a worker is lost while its step is compiled", RETRACING, Retraced(ON_0, WorkerLostError("gone")),
     [SendStep(attempt(2, 0, A))], {"under_way": 2, "queued": 1}),
    ("what was compiled for a lost worker is no matter any more", after(RETRACING, ActorGone(WORKERS[0], 1, "dead")),
     Retraced(ON_0, None), [], {"under_way": 1, "queued": 2}),
    ("in quiet what was compiled goes back", after(RETRACING, QuietBegan(1)), Retraced(ON_0, None), [],
     {"under_way": 1, "queued": 2}),
    ("a lost server is recovered at once when all is idle", UP, ActorGone(PS, 1, "dead"),
     [RecoverServers("ps:0 has gone. dead")], {"phase": Recovering()}),
    ("a lost server is recovered when nothing is under way", DRAINING, StepAnswered(ON_0, DONE),
     [SetResult(ON_0, DONE)], {"phase": Draining("ps:0 has gone. dead"), "queued": 1}),
    ("the last one to be through begins the recovery", after(DRAINING, StepAnswered(ON_0, DONE)),
     StepAnswered(ON_1, ServerLost("gone")), [RecoverServers("ps:0 has gone. dead")],
     {"phase": Recovering(), "queued": 2}),
    ("a second loss does not begin it twice", RECOVERING, RecoveryWanted(1, "gone"), [], {"phase": Recovering()}),
    ("what is scheduled meanwhile waits", RECOVERING, Scheduled(A), [NoteIdle()], {"queued": 1}),
    ("after the recovery it goes on", after(RECOVERING, ServerStarting(PS), Scheduled(A)), Recovered(None),
     [SendStep(ON_0)], {"phase": Serving(), "under_way": 1}),
    ("a server that was lost meanwhile is recovered, too", RECOVERING, Recovered(None),
     [RecoverServers("ps:0 has gone.")], {"phase": Recovering()}),
    ("a recovery that fails ends the training", after(RECOVERING, Scheduled(A)), Recovered(MINE), [SetError(A, MINE)],
     {"phase": Broken(MINE), "queued": 0}),
    ("servers that are lost while others are replaced are replaced, too", RECOVERING, RecoveryInterrupted(GONE, (0,)),
     [RecoverServers("gone again", (0,))], {"phase": Recovering(tries=2)}),
    ("whoever wants quiet is not disturbed by a recovery", QUIET, ActorGone(PS, 1, "dead"), [],
     {"phase": Draining("ps:0 has gone. dead")}),
    ("unless it waits for the recovery itself", QUIET, RecoveryWanted(1, "gone"), [RecoverServers("gone")],
     {"phase": Recovering()}),
    ("in quiet nothing begins", QUIET, Scheduled(A), [NoteIdle()], {"queued": 1}),
    ("after it all begins", after(QUIET, Scheduled(A)), QuietEnded(1), [SendStep(ON_0)], {"under_way": 1}),
    ("quiet lasts until its last end", after(QUIET, QuietBegan(1), Scheduled(A)), QuietEnded(1), [], {"queued": 1}),
    ("an error cancels what is queued", BUSY, StepAnswered(ON_0, StepFailed(MINE)),
     [SetError(A, MINE), SetError(C, MINE)], {"under_way": 1, "queued": 0, "error": MINE}),
    ("the first error is kept", FAILED, StepAnswered(ON_1, StepFailed(KeyError())), [SetError(B, KeyError())],
     {"under_way": 0, "error": MINE}),
    ("after an error a lost worker's step is cancelled", FAILED, ActorGone(WORKERS[1], 1, "dead"), [SetError(B, MINE)],
     {"under_way": 0, "queued": 0}),
    ("an error that was raised is forgotten", FAILED, ErrorRaised(), [], {"error": None}),
    ("also after the end", after(FAILED, Closed()), ErrorRaised(), [], {"error": None}),
    ("a failure of the scheduler ends all", BUSY, SchedulerFailed(MINE), [SetError(s, MINE) for s in (C, A, B)],
     {"phase": Broken(MINE), "under_way": 0, "queued": 0}),
    ("nothing is begun any more", BROKEN, Tick(100.0), [], {"phase": Broken(MINE)}),
    ("what is scheduled then is cancelled", BROKEN, Scheduled(A), [SetError(A, MINE)], {"queued": 0}),
    ("an answer then is ignored", BROKEN, StepAnswered(ON_0, DONE), [], {}),
    ("the first failure is kept", BROKEN, SchedulerFailed(KeyError()), [], {"phase": Broken(MINE)}),
    ("the end cancels what is left", BUSY, Closed(), [SetError(s, CancelledError()) for s in (C, A, B)],
     {"under_way": 0, "queued": 0}),
    ("the end of an idle training has no error", UP, Closed(), [], {"phase": Ended(None)}),
    ("the end after a failure has that", BROKEN, Closed(), [], {"phase": Ended(MINE)}),
    ("after the end nothing happens", after(UP, Closed()), Tick(100.0), [], {"phase": Ended(None)}),
    ("what is scheduled after the end is cancelled", after(UP, Closed()), Scheduled(A),
     [SetError(A, CancelledError())], {"queued": 0}),
]  # fmt: skip


def shown(state: SchedulerState) -> dict[str, Any]:
    """What the table can ask for."""
    ledger = state.ledger
    return {
        "phase": state.phase, "error": state.error, "queued": ledger.queued, "under_way": ledger.under_way,
        "ready": set(ledger.ready),
    }  # fmt: skip


def comparable(action: Action) -> Any:
    """An action with its error by class: a closure that is cancelled because of an error gets one of its own."""
    if isinstance(action, SetError):
        is_cancelled = isinstance(action.error, CancelledError)
        return SetError, action.closure, "cancelled" if is_cancelled else type(action.error)
    return action


def is_as_expected(found: Action, expected: Action) -> bool:
    if isinstance(found, SetError) and isinstance(expected, SetError) and isinstance(found.error, CancelledError):
        told = isinstance(expected.error, CancelledError) or repr(expected.error) in str(found.error)
        return found.closure is expected.closure and told
    return comparable(found) == comparable(expected)


@pytest.mark.parametrize(
    ("state", "event", "actions", "changes"), [row[1:] for row in TRANSITIONS], ids=[row[0] for row in TRANSITIONS]
)
def test_each_transition_does_what_the_table_says(state, event, actions, changes):
    before = copy.copy(shown(state))
    new, found = next_state(state, event)
    assert len(found) == len(actions), found
    assert all(map(is_as_expected, found, actions)), found
    assert {name: shown(new)[name] for name in changes} == changes
    assert shown(state) == before  # The state before is a value, too: nobody has changed it.
    assert [comparable(action) for action in next_state(state, event)[1]] == [comparable(a) for a in found]


def test_a_step_that_kills_ten_workers_is_given_to_no_other_one():
    state, found = after(all_up(workers=1, servers=0), Scheduled(A)), []
    for life in range(1, 11):
        state, actions = next_state(state, ActorGone(WORKERS[0], life, "it died"))
        found += actions
        state = after(state, Tick(state.now + 5), WorkerStarted(WORKERS[0], life + 1, 0))
        state = after(state, PingAnswered(WORKERS[0], life + 1, REPORT))
    (action,) = found
    assert isinstance(action, SetError)
    with pytest.raises(WorkerLostError, match=r"a was given to 10 workers, and each of them was lost .* it died"):
        raise action.error
    assert state.error is action.error
    assert state.is_idle


def test_servers_are_replaced_ten_times_and_no_more():
    state, tries = RECOVERING, 1
    while True:
        state, actions = next_state(state, RecoveryInterrupted(GONE, (0,)))
        if not isinstance(actions[0], RecoverServers):
            break
        tries += 1
    assert tries == 10
    (given_up,) = actions
    assert isinstance(given_up, GiveUpServers)
    assert str(given_up.error) == "ps:0 could not be replaced, tried 10 times. gone again"
    assert state.phase == Broken(given_up.error)


def test_servers_are_replaced_no_longer_than_actors_are_waited_for():
    state = after(RECOVERING, Tick(RECOVERING.now + RECOVERING.longest_wait))
    assert isinstance(next_state(state, RecoveryInterrupted(GONE, (0,)))[1][0], RecoverServers)
    late = after(state, Tick(state.now + 1))
    (given_up,) = next_state(late, RecoveryInterrupted(GONE, (0,)))[1]
    assert str(given_up.error) == "ps:0 could not be replaced, tried for 200 s. gone again"


def test_who_waits_for_servers_is_told_if_the_training_has_ended_meanwhile():
    state = after(RECOVERING, SchedulerFailed(MINE))
    assert next_state(state, RecoveryInterrupted(GONE, (0,))) == (state, (GiveUpServers(GONE),))


def test_steps_that_no_worker_comes_for_are_an_error_in_the_end():
    state = after(fresh(), Scheduled(A))
    (cancelled,) = [action for action in ticks(state, until=500)[1] if isinstance(action, SetError)]
    assert isinstance(cancelled.error, CancelledError)
    with pytest.raises(ClusterTimeoutError, match=r"worker:0, worker:1.*worker:0 is starting"):
        raise ticks(state, until=500)[0].error or AssertionError


def ticks(state: SchedulerState, until: float) -> tuple[SchedulerState, list[Action]]:
    found: list[Action] = []
    while state.now < until and state.error is None:
        state, actions = next_state(state, Tick(state.now + 5))
        found += actions
    return state, found


def test_a_worker_that_makes_no_progress_is_ended_and_gets_no_more_steps():
    state, found = BUSY, []
    while not found and state.now < 100:
        for worker in WORKERS:
            state = after(state, PingAnswered(worker, 1, REPORT))
        state = after(state, PingAnswered(PS, 1, None))
        state, actions = next_state(state, Tick(state.now + 1))
        found += [action for action in actions if isinstance(action, EndActor)]
    assert [action.actor for action in found] == WORKERS
    assert state.ledger.ready == frozenset()
    assert state.watch[WORKERS[0]].stage is Stage.ENDING


def test_the_report_of_an_earlier_life_is_not_noted():
    state = after(BUSY, ActorGone(WORKERS[0], 1, "dead"), Tick(1.0))
    assert next_state(state, PingAnswered(WORKERS[0], 1, REPORT))[1] == ()
    state = after(state, WorkerStarted(WORKERS[0], 2, 0))
    assert next_state(state, PingAnswered(WORKERS[0], 2, REPORT))[1][0] == NoteReport(0, REPORT)
