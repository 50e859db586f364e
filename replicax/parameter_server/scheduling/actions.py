"""The actions that `machine.next_state` returns: things to be done in an asynchronous training."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from replicax.errors import ParameterServerLost
from replicax.parameter_server.actors.messages import Done, Report
from replicax.parameter_server.scheduling.closures import Closure
from replicax.parameter_server.scheduling.ledger import Attempt
from replicax.parameter_server.scheduling.watch import ActorId

# Calls of other processes, or what takes time: for the scheduler's threads.


class SendStep(NamedTuple):
    """Send a closure to a worker."""

    attempt: Attempt


class RetraceStep(NamedTuple):
    """Compile a closure for the batch that the worker has in this iterator."""

    attempt: Attempt
    iterator: int


class PingActor(NamedTuple):
    """Ask an actor for a sign of life."""

    actor: ActorId
    life: int


class StartWorker(NamedTuple):
    """Start a worker in the place of the one that there was."""

    actor: ActorId
    life: int


class EndActor(NamedTuple):
    """Kill an actor that hangs."""

    actor: ActorId
    life: int
    why: str


class RecoverServers(NamedTuple):
    """Try to replace lost servers and to give all variables the values of the newest checkpoint."""

    reason: str
    lost: tuple[int, ...] = ()  # those that an earlier try has replaced: their variables are not back yet


class GiveUpServers(NamedTuple):
    """Let nobody wait any more for servers that could not be replaced."""

    error: ParameterServerLost


# Notes in this process: whoever sees the state afterwards relies on them, so they are taken together with it.


class NoteIdle(NamedTuple):
    """Note that all earlier updates have been applied: what is scheduled from here on must see them."""


class NoteReport(NamedTuple):
    """Note what a worker says of itself."""

    worker: int
    report: Report


class SetResult(NamedTuple):
    """Make what a worker has answered the result of the closure."""

    attempt: Attempt
    done: Done


class SetError(NamedTuple):
    """Make an error the result of a closure."""

    closure: Closure
    error: BaseException


Call: TypeAlias = SendStep | RetraceStep | PingActor | StartWorker | EndActor | RecoverServers | GiveUpServers
Note: TypeAlias = NoteIdle | NoteReport | SetResult | SetError
Action: TypeAlias = Call | Note
