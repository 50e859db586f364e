"""The actors of a training, as the scheduler sees them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from replicax.parameter_server.actors.messages import Done, Report
from replicax.parameter_server.scheduling.closures import StepPrograms
from replicax.parameter_server.scheduling.handles import ServerIdentity, WorkerAnswer
from replicax.parameter_server.scheduling.host import CheckpointSource, ServedStrategy
from replicax.parameter_server.scheduling.ledger import Attempt
from replicax.parameter_server.scheduling.recovery import Recovery, ServersLostAgain, no_checkpoint
from replicax.parameter_server.scheduling.stats import StatsRecorder
from replicax.parameter_server.scheduling.unused import UnusedObjects
from replicax.parameter_server.scheduling.watch import WORKER, ActorId
from replicax.parameter_server.scheduling.worker_actors import WorkerActors

_log = logging.getLogger(__name__)
_VERSIONS_PER_WORKER = 2  # A worker that had a pause pulls anew; one that is busy uses what came with its last push.


class RayActorGroup:
    """Workers and servers, with what they have done so far."""

    def __init__(
        self,
        strategy: ServedStrategy,
        workers: WorkerActors,
        programs: StepPrograms,
        stats: StatsRecorder,
        unused: UnusedObjects,
        manager: CheckpointSource | None,
    ):
        self._strategy, self._workers, self._servers = strategy, workers, strategy.servers
        self._programs, self._stats, self._unused, self._manager = programs, stats, unused, manager
        self._complete = list(stats.versions)  # for each server the version with all updates of earlier times

    # Steps.

    def send(self, attempt: Attempt) -> Future[WorkerAnswer]:
        """Sends a closure to a worker; returns a future of its answer."""
        versions, slack = self._stats.versions, _VERSIONS_PER_WORKER * len(self._workers)
        known = zip(self._servers.written, self._complete, versions, strict=True)
        at_least = tuple(max(written, complete, version - slack) for written, complete, version in known)
        exact = self._strategy.max_staleness is not None
        return self._workers.run(
            attempt.worker, attempt.closure.step(at_least, exact, self._workers.set_ups_for_servers)
        )

    def retrace(self, attempt: Attempt, iterator: int) -> None:
        """Compiles a closure for the batch that a worker has: the last one of a pass is smaller, for example."""
        self._programs.retrace(attempt.closure, iterator, attempt.worker)

    def set_result(self, attempt: Attempt, done: Done) -> None:
        """Makes what a worker has answered the result of the closure."""
        self._servers.age += 1
        self._stats.note(attempt.worker, done)
        attempt.closure.set_result(done)

    def note_idle(self) -> None:
        """Notes that all updates so far have been applied: what is scheduled from here on computes from them."""
        self._complete = list(self._stats.versions)

    # Actors.

    def ping(self, actor: ActorId, life: int) -> Future[Report] | Future[ServerIdentity] | None:
        """Asks an actor for a sign of life; returns None if this life of it is over."""
        if actor.job == WORKER:
            return self._workers.ping(actor.index, life)
        return self._servers.ping(actor.index, life)

    def note_report(self, worker: int, report: Report) -> None:
        """Notes what a worker says of itself."""
        self._workers.note_report(worker, report)

    def start(self, actor: ActorId, life: int) -> int:
        """Starts a worker, in the place of one that there may be; returns how much it has to do before it is up."""
        self._stats.restarts[actor.index] = life - 1
        return self._workers.start(actor.index, life)

    def end(self, actor: ActorId, life: int, why: str) -> None:
        """Kills an actor that hangs."""
        _log.warning("%s: it is ended, and another one takes its place.", why)
        if actor.job == WORKER:
            self._workers.end(actor.index, life)
        else:
            self._servers.end_life(actor.index, life)

    def recover(self, reason: str, lost: Sequence[int], starting: Callable[[int], None]) -> None:
        """Tries to replace lost servers while nothing is under way; those that are `lost` have no variables yet."""
        try:
            if self._manager is None:
                raise no_checkpoint(reason)
            recovery = Recovery(self._strategy, self._workers, self._manager, starting, self._servers_replaced)
            recovery(reason, lost)
        except BaseException as error:
            head = self._strategy.cluster.head
            if head is not None and head.is_gone():  # Then no other server can be had, whatever the error says.
                lost_head = head.lost()
                self.give_up_servers(lost_head)
                raise lost_head from error
            if not isinstance(error, ServersLostAgain):
                self.give_up_servers(error)
            raise
        self._servers.end_restoring()

    def give_up_servers(self, error: BaseException) -> None:
        """Lets nobody wait for lost servers any more, nor read a value that this process happens to have kept."""
        self._servers.failure = error
        self._servers.end_restoring()

    def _servers_replaced(self, servers: Sequence[int]) -> None:
        self._stats.servers_replaced(servers)
        for server in servers:
            self._complete[server] = 0

    def drop_unused(self) -> None:
        """Lets workers and servers drop what nobody refers to any more."""
        for provided, servers in self._unused.take():
            self._workers.forget(provided)
            if isinstance(provided, tuple):
                self._servers.forget(provided[1], servers)
