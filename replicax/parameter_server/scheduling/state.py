"""The state of an asynchronous training, as a value: what `machine.next_state` takes and returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from replicax.cluster.patience import Patience
from replicax.parameter_server.scheduling.ledger import Attempt, Ledger
from replicax.parameter_server.scheduling.watch import WORKER, ActorId, Watch, longest_wait


@dataclasses.dataclass(frozen=True)
class Serving:
    """Closures are handed out."""


@dataclasses.dataclass(frozen=True)
class Draining:
    """Servers are lost; what is under way comes to its end before they are recovered."""

    reason: str


@dataclasses.dataclass(frozen=True)
class Recovering:
    """Lost servers are being replaced."""

    since: float = dataclasses.field(default=0.0, compare=False)
    tries: int = 1  # with the present one


@dataclasses.dataclass(frozen=True)
class Broken:
    """Nothing can be run any more; all threads that wait raise the error."""

    error: BaseException


@dataclasses.dataclass(frozen=True)
class Ended:
    """The strategy is closed."""

    error: BaseException | None  # for threads that still wait; None if everything had been done


Phase: TypeAlias = Serving | Draining | Recovering | Broken | Ended


class SchedulerState(NamedTuple):
    """All that is known of a training, as a value."""

    ledger: Ledger
    watch: Watch
    phase: Phase = Serving()
    now: float = 0.0  # of the last tick
    error: BaseException | None = None  # the first one since one was raised last
    quiet: Mapping[int, int] = MappingProxyType({})  # the threads that want nothing to begin, and how many times over
    awaiting: frozenset[int] = frozenset()  # the threads that wait for the recovery of servers
    workers_seen_at: float = 0.0  # when a worker was ready last, or none was needed

    @classmethod
    def of(cls, ledger: Ledger, servers: int, patience: Patience) -> SchedulerState:
        """Returns the state at the beginning: the servers are started already, and the workers are not."""
        watch = Watch.of(ledger.workers, servers, patience)
        for actor in watch.lost_servers():
            watch = watch.starts(actor, 0.0)
        return cls(ledger, watch)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is queued or under way."""
        return self.ledger.queued == 0 and self.ledger.under_way == 0

    def is_quiet(self, for_helper: bool) -> bool:
        """Returns whether nothing is under way; what the helper thread does is not in its own way."""
        recovers = isinstance(self.phase, Recovering) and not for_helper
        return self.ledger.under_way == self.ledger.retracing and not recovers

    @property
    def is_recovering(self) -> bool:
        """Whether servers are lost and have not been replaced yet."""
        return isinstance(self.phase, (Draining, Recovering))

    @property
    def is_ended(self) -> bool:
        """Whether the strategy is closed."""
        return isinstance(self.phase, Ended)

    @property
    def fatal(self) -> BaseException | None:
        """Why nothing can be run any more; None if something can, or if all was done before the end."""
        return self.phase.error if isinstance(self.phase, (Broken, Ended)) else None

    @property
    def longest_wait(self) -> float:
        """How many seconds closures wait while no worker is up, before that is an error."""
        return longest_wait(self.watch.patience)

    # Transitions of several parts at once: each returns the state afterwards.

    def with_finished(self, attempt: Attempt) -> SchedulerState:
        """Notes that a worker is through with a closure."""
        return self._with_progress(self.ledger.finish(attempt), attempt.worker)

    def with_put_back(self, attempt: Attempt) -> SchedulerState:
        """Notes that a worker could not run a closure, which goes back to the head of the queue."""
        return self._with_progress(self.ledger.put_back(attempt), attempt.worker)

    def with_repeated(self, attempt: Attempt) -> tuple[SchedulerState, Attempt]:
        """Lets a worker try again a closure that it has; returns the new attempt, too."""
        ledger, again = self.ledger.repeat(attempt)
        return self._with_progress(ledger, attempt.worker), again

    def _with_progress(self, ledger: Ledger, worker: int) -> SchedulerState:
        watch = self.watch.makes_progress(ActorId(WORKER, worker), self.now, is_busy=bool(ledger.running[worker]))
        return self._replace(ledger=ledger, watch=watch)

    def with_server_lost(self, reason: str) -> SchedulerState:
        """Notes that a server is lost; nothing begins until it has been recovered."""
        return self._replace(phase=Draining(reason)) if isinstance(self.phase, Serving) else self

    def with_servers_recovered(self) -> SchedulerState:
        """Notes that lost servers have been replaced; others may have been lost meanwhile."""
        lost = ", ".join(map(str, self.watch.lost_servers()))
        return self._replace(phase=Draining(f"{lost} has gone.") if lost else Serving())
