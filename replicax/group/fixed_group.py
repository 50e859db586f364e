"""The group of a fixed job: all processes that JAX connects, until the job ends."""

from __future__ import annotations

import itertools
import threading

import jax

from replicax.cluster import detect_cluster
from replicax.cluster.exchange import AbsentError, Exchange, exchanged
from replicax.cluster.key_value_store import Store
from replicax.cluster.patience import Patience
from replicax.contracts.group import Ballot, Group, World
from replicax.errors import CheckpointError

_numbers = itertools.count()


class FixedGroup(Group):
    """All processes that JAX connects; this one alone where it connects none."""

    @property
    def world(self) -> World:
        everyone = tuple(range(jax.process_count()))
        return World(0, jax.process_index(), everyone, tuple(f"worker:{index}" for index in everyone))

    @property
    def is_chief(self) -> bool:
        """Whether this is the first process."""
        if jax.distributed.is_initialized():
            return jax.process_index() == 0
        # A process without a cluster is its own chief, and so is an evaluator.
        return detect_cluster().config.is_chief  # JAX must not begin to use devices before it is connected.

    def messages(self, own: bytes) -> list[bytes]:
        """Returns the messages of all processes, in their order."""
        return exchanged(own)

    def ballot(self, patience: Patience, closed: threading.Event) -> Ballot | None:
        """Returns where they vote; all of them call this together."""
        count = jax.process_count()
        return None if count == 1 else ServiceBallot(jax.process_index(), count, patience, closed)


class ServiceBallot:
    """A ballot in JAX's coordination service; `contracts.group.Ballot` says what the methods do."""

    is_final = False

    def __init__(
        self, process: int, count: int, patience: Patience, closed: threading.Event, store: Store | None = None
    ):
        self._process, self._patience = process, patience
        prefix = f"replicax/preemption/{next(_numbers)}"
        self._exchange = Exchange(prefix, process, range(count), store=store, timeout_s=patience.silence, closed=closed)

    def position(self, checks: int) -> int:
        """Returns the number of checks: all processes make the same ones."""
        return checks

    def call(self, round_: int) -> None:
        self._exchange.decide(f"{round_}/preempted", str(self._process).encode())

    def is_called(self, round_: int) -> bool:
        return self._exchange.decided(f"{round_}/preempted", self._patience.start) is not None

    def cast(self, round_: int, passed: int) -> None:
        self._exchange.tell(f"{round_}/passed", str(passed).encode())

    def result(self, round_: int) -> int:
        try:
            return max(int(passed) for passed in self._exchange.collect(f"{round_}/passed"))
        except AbsentError as error:
            absent = ", ".join(f"process {process}" for process in error.missing)
            raise CheckpointError(f"after {self._patience.silence:g} s nothing was heard of {absent}") from None
