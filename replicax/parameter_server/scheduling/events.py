"""The events that `machine.next_state` takes: things that may happen in an asynchronous training."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from replicax.errors import ParameterServerLost
from replicax.parameter_server.actors.messages import Done, Report, ServerLost, UnexpectedBatch
from replicax.parameter_server.scheduling.closures import Closure
from replicax.parameter_server.scheduling.ledger import Attempt
from replicax.parameter_server.scheduling.watch import ActorId

# Requests of users' threads.


class Scheduled(NamedTuple):
    """A closure is to be run."""

    closure: Closure


class ErrorRaised(NamedTuple):
    """The first error has been raised where the user sees it; training may go on."""


class QuietBegan(NamedTuple):
    """A thread wants nothing to begin."""

    thread: int


class QuietEnded(NamedTuple):
    """A thread that wanted nothing to begin wants that no more."""

    thread: int


class RecoveryWanted(NamedTuple):
    """A thread has found that a server is lost, and waits for the recovery."""

    thread: int
    reason: str


class RecoveryWaitEnded(NamedTuple):
    """A thread waits for the recovery no more."""

    thread: int


class Closed(NamedTuple):
    """The strategy is closed."""


# Observations of the scheduler's thread.


class Tick(NamedTuple):
    """Time has passed."""

    now: float  # in seconds; it never runs backwards


class WorkerStarted(NamedTuple):
    """A worker was started."""

    actor: ActorId
    life: int  # that this began
    goal: int  # how many set-ups it must do before it is up


class ServerStarting(NamedTuple):
    """A server is there, or will be at once."""

    actor: ActorId


class PingAnswered(NamedTuple):
    """An actor has answered a ping."""

    actor: ActorId
    life: int
    report: Report | None  # None from a server


class ActorGone(NamedTuple):
    """An actor has gone, or could not be started."""

    actor: ActorId
    life: int  # that is over
    why: str  # Ray's message, or how it hung


class StepAnswered(NamedTuple):
    """A worker has answered an attempt."""

    attempt: Attempt
    answer: Answer


class Retraced(NamedTuple):
    """A closure has been compiled for another batch, or could not be."""

    attempt: Attempt  # that met the batch
    error: BaseException | None


class Recovered(NamedTuple):
    """Lost servers have been replaced, or cannot be."""

    error: BaseException | None


class RecoveryInterrupted(NamedTuple):
    """Servers were lost while others were being replaced."""

    error: ParameterServerLost
    lost: tuple[int, ...]  # all whose variables are not back yet


class SchedulerFailed(NamedTuple):
    """The scheduler itself has failed."""

    error: BaseException


# Answers of an attempt besides `Done`, `UnexpectedBatch` and `ServerLost`, which the worker sends.


class StepFailed(NamedTuple):
    """The function, or the dataset that it takes batches from, raised an error."""

    error: BaseException


class WorkerGone(NamedTuple):
    """The worker has gone while it had the closure."""

    why: str  # Ray's message


Answer: TypeAlias = Done | UnexpectedBatch | ServerLost | StepFailed | WorkerGone
Event: TypeAlias = (
    Scheduled | ErrorRaised | QuietBegan | QuietEnded | RecoveryWanted | RecoveryWaitEnded | Closed
    | Tick | WorkerStarted | ServerStarting | PingAnswered | ActorGone | StepAnswered | Retraced | Recovered
    | RecoveryInterrupted | SchedulerFailed
)  # fmt: skip
