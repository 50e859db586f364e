"""A store in memory, cliques of threads, and islands that end at a chosen moment."""

from __future__ import annotations

import functools
import itertools
import sys
import threading
import time
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from replicax.cluster.patience import Patience
from replicax.contracts.group import Incarnation
from replicax.group.membership.elastic_meeting import ElasticMeeting
from replicax.group.membership.heartbeat import Watch
from replicax.group.membership.job_store import JobStore
from replicax.group.membership.meeting import MemberLostError
from replicax.group.membership.quorum import QuorumRecord
from tests.cluster.fake_store import FakeStore

SECONDS = 20.0


class MemoryStore(FakeStore):
    """`replicax.group.membership.job_store.Store` for threads: a value takes the place of another."""

    def put(self, key, value):
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def listing(self, prefix):
        with self.changed:
            return {key: value for key, value in self.values.items() if key.startswith(f"{prefix}/")}


class Died(BaseException):
    """The end of a process, as a thread has it."""


class MortalStore:
    """A store whose process ends at the operation with a number, before it or after it, or is dead already."""

    def __init__(self, store: MemoryStore, dies_at: int | None, after: bool, is_dead: Callable[[], bool]):
        self.store, self.dies_at, self.after, self.is_dead, self.operations = store, dies_at, after, is_dead, 0

    def __getattr__(self, name):
        operation = getattr(self.store, name)

        def called(*args):
            self.operations += 1
            if self.is_dead() or (self.operations == self.dies_at and not self.after):
                raise Died
            result = operation(*args)
            if self.operations == self.dies_at:
                raise Died
            return result

        return called


class Cliques:
    """Sums between threads; one that is dead makes those of the others fail, as lost connections do."""

    def __init__(self):
        self.lock = threading.Condition()
        self.parts: dict[tuple[int, int], dict[int, list[np.ndarray]]] = {}
        self.dead: set[Incarnation] = set()

    def of(self, incarnation: Incarnation, dies: Callable[[], None] | None = None):
        return lambda record, rank: _Clique(self, record, rank, incarnation, dies)

    def bury(self, incarnation):
        with self.lock:
            self.dead.add(incarnation)
            self.lock.notify_all()


class _Clique:
    def __init__(self, cliques, record: QuorumRecord, rank, incarnation, dies):
        self.cliques, self.record, self.rank, self.incarnation, self.dies = cliques, record, rank, incarnation, dies
        self.count, self.interrupted = 0, False

    def total(self, parts):
        self.count += 1
        if self.dies is not None:
            self.dies()
        cliques, key = self.cliques, (self.record.clique, self.count)
        with cliques.lock:
            found = cliques.parts.setdefault(key, {})
            found[self.rank] = parts
            cliques.lock.notify_all()

            def is_over():
                return (
                    len(found) == len(self.record.incarnations)
                    or self.interrupted
                    or cliques.dead & {*self.record.incarnations}
                )

            assert cliques.lock.wait_for(is_over, SECONDS)
            if len(found) < len(self.record.incarnations):
                raise RuntimeError("Gloo: Connection closed by peer")
        return [sum(each[i] for each in found.values()) for i in range(len(parts))]

    def install(self):
        """Does nothing: threads share JAX's client."""

    def interrupt(self):
        with self.cliques.lock:
            self.interrupted = True
            self.cliques.lock.notify_all()
        return True


class Islands:
    """Islands that are threads: each adds its index + 1 to a number in each round, and takes the mean."""

    def __init__(self, size=3, stall_s=SECONDS):
        self.store, self.cliques, self.stall_s = MemoryStore(), Cliques(), stall_s
        self.names = [f"worker:{index}" for index in range(size)]
        self.results: dict[Incarnation, float] = {}
        self.errors: dict[Incarnation, BaseException] = {}
        self.journal: dict[int, set[tuple[int, ...]]] = {}
        self.threads: dict[Incarnation, threading.Thread] = {}
        self.stopped: set[Incarnation] = set()
        self.last = sys.maxsize  # the round after which all end
        self.rounds: dict[Incarnation, set[int]] = {}
        self.heartbeat: threading.Thread | None = None

    def meeting(self, incarnation, dies_at=None, after=False, dies_in_sum=None, watch: Watch | None = None):
        job_store = JobStore(MortalStore(self.store, dies_at, after, functools.partial(self._is_dead, incarnation)))
        patience = Patience(SECONDS, self.stall_s, end=SECONDS, again=0.005, stall=self.stall_s)
        return ElasticMeeting(
            job_store, incarnation, self.names, self.cliques.of(incarnation, dies_in_sum), patience, watch
        )

    def start(self, incarnation, rounds, **how):
        thread = threading.Thread(target=self._run, args=(incarnation, rounds, how), daemon=True)
        self.threads[incarnation] = thread
        thread.start()

    def beat(self):
        """Gives signs of life from then on, for all who are not stopped."""
        self.heartbeat = threading.Thread(target=self._beat, daemon=True)
        self.heartbeat.start()

    def _beat(self):
        for count in itertools.count():
            running = [incarnation for incarnation, thread in list(self.threads.items()) if thread.is_alive()]
            for incarnation in {*running} - self.stopped:
                JobStore(self.store).beat(incarnation, count, f"{count}")
            if not running:
                return
            time.sleep(0.02)

    def _is_dead(self, incarnation):
        while incarnation in self.stopped:
            time.sleep(0.01)
        return incarnation in self.cliques.dead

    def join(self):
        deadline = time.monotonic() + SECONDS
        for thread in [*self.threads.values(), *filter(None, [self.heartbeat])]:
            thread.join(max(0.0, deadline - time.monotonic()))
        assert not [incarnation for incarnation, thread in self.threads.items() if thread.is_alive()], "hangs"

    def done_by(self, incarnation):
        """Returns the rounds that an incarnation has made."""
        return self.rounds.get(incarnation, set())

    def _run(self, incarnation, rounds, how):
        wait_s = how.pop("wait_s", 0.0)
        predecessor = how.pop("waits_for", None)
        if predecessor is not None:  # The launcher starts it when that one has ended.
            with self.store.changed:
                key = f"gone/{predecessor.index}/{predecessor.number}"
                assert self.store.changed.wait_for(lambda: key in self.store.values, SECONDS)
        try:
            meeting = self.meeting(incarnation, **how)
            self.results[incarnation] = self.train(meeting, rounds, wait_s)
            meeting.leave()
        except Died:
            JobStore(self.store).end(incarnation)  # As the launcher tells.
            self.cliques.bury(incarnation)
        except BaseException as error:
            self.errors[incarnation] = error

    def train(self, meeting, rounds, wait_s=0.0):
        value, done = 0.0, -1
        while done < min(rounds, self.last):
            time.sleep(wait_s)
            quorum = meeting.gather("a round", str(done).encode())
            notes = [int(note) for note in quorum.notes]
            newest = max(notes)
            old = [index for index, note in zip(quorum.present, notes, strict=True) if note == newest]
            added = meeting.index + 1 if newest >= 0 else 0
            mine = (value + added) / len(old) if meeting.index in old else 0.0
            try:
                (total,) = meeting.total(quorum, [jnp.full(2, mine)])
            except MemberLostError:
                continue
            value, done = float(total[0]), newest + 1
            self.journal.setdefault(done, set()).add(tuple(old))
            self.rounds.setdefault(meeting.incarnation, set()).add(done)
        return value

    def expected(self):
        """Returns the last value: each round has one list of those who took part."""
        value = 0.0
        for number in sorted(self.journal):
            (old,) = self.journal[number]
            value += sum(index + 1 for index in old) / len(old) if number else 0.0
        return value
