"""The events that `machine.next_state` takes: things that may happen in an asynchronous training."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from replicax.parameter_server.actors.messages import Done, Report, ServerLost, UnexpectedBatch
from replicax.parameter_server.scheduling.closures import Closure
from replicax.parameter_server.scheduling.ledger import Attempt
from replicax.parameter_server.scheduling.watch import ActorId

# Requests of users' threads.


class Scheduled(NamedTuple):
    """A closure is to be run.

    Attributes:
        closure: The closure.
    """

    closure: Closure


class ErrorRaised(NamedTuple):
    """The first error has been raised where the user sees it; training may go on."""


class QuietBegan(NamedTuple):
    """A thread wants nothing to begin.

    Attributes:
        thread: The thread's id.
    """

    thread: int


class QuietEnded(NamedTuple):
    """A thread that wanted nothing to begin wants that no more.

    Attributes:
        thread: The thread's id.
    """

    thread: int


class RecoveryWanted(NamedTuple):
    """A thread has found that a server is lost, and waits for the recovery.

    Attributes:
        thread: The thread's id.
        reason: What it has found.
    """

    thread: int
    reason: str


class RecoveryWaitEnded(NamedTuple):
    """A thread waits for the recovery no more.

    Attributes:
        thread: The thread's id.
    """

    thread: int


class Closed(NamedTuple):
    """The strategy is closed."""


# Observations of the scheduler's thread.


class Tick(NamedTuple):
    """Time has passed.

    Attributes:
        now: The time, in seconds; it never runs backwards.
    """

    now: float


class WorkerStarted(NamedTuple):
    """A worker was started.

    Attributes:
        actor: The worker.
        life: The life that this began.
        goal: How many things it was told to do before it is up.
    """

    actor: ActorId
    life: int
    goal: int


class ServerStarting(NamedTuple):
    """A server is there, or will be at once.

    Attributes:
        actor: The server.
    """

    actor: ActorId


class PingAnswered(NamedTuple):
    """An actor has answered a ping.

    Attributes:
        actor: The actor.
        life: The life that was asked.
        report: What a worker says of itself; None from a server.
    """

    actor: ActorId
    life: int
    report: Report | None


class ActorGone(NamedTuple):
    """An actor has gone, or could not be started.

    Attributes:
        actor: The actor.
        life: Which life of it is over.
        why: What Ray says.
    """

    actor: ActorId
    life: int
    why: str


class StepAnswered(NamedTuple):
    """A worker has answered an attempt.

    Attributes:
        attempt: The attempt.
        answer: What came of it.
    """

    attempt: Attempt
    answer: Answer


class Retraced(NamedTuple):
    """A closure has been compiled for another batch, or could not be.

    Attributes:
        attempt: The attempt that met the batch.
        error: Why it could not be.
    """

    attempt: Attempt
    error: BaseException | None


class Recovered(NamedTuple):
    """Lost servers have been replaced, or cannot be.

    Attributes:
        error: Why they cannot be.
    """

    error: BaseException | None


class SchedulerFailed(NamedTuple):
    """The scheduler itself has failed.

    Attributes:
        error: Why.
    """

    error: BaseException


# Answers of an attempt besides `Done`, `UnexpectedBatch` and `ServerLost`, which the worker sends.


class StepFailed(NamedTuple):
    """The function, or the dataset that it takes batches from, raised an error.

    Attributes:
        error: The error.
    """

    error: BaseException


class WorkerGone(NamedTuple):
    """The worker has gone while it had the closure.

    Attributes:
        why: What Ray says.
    """

    why: str


Answer: TypeAlias = Done | UnexpectedBatch | ServerLost | StepFailed | WorkerGone
Event: TypeAlias = (
    Scheduled | ErrorRaised | QuietBegan | QuietEnded | RecoveryWanted | RecoveryWaitEnded | Closed
    | Tick | WorkerStarted | ServerStarting | PingAnswered | ActorGone | StepAnswered | Retraced | Recovered
    | SchedulerFailed
)  # fmt: skip
