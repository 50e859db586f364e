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
from replicax.group.membership import MemberLostError
from replicax.group.membership.job_store import Board
from replicax.group.membership.quorum import Life, Sheet
from replicax.group.membership.elastic_meeting import ElasticMeeting
from replicax.group.membership.heartbeat import Watch

SECONDS = 20.0


class MemoryStore:
    """`replicax.group.membership.job_store.Store` for threads."""

    def __init__(self):
        self.values: dict[str, bytes] = {}
        self.changed = threading.Condition()

    def put(self, key, value):
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def put_if_absent(self, key, value):
        with self.changed:
            if key in self.values:
                return False
            self.put(key, value)
            return True

    def get(self, key, timeout_s):
        with self.changed:
            self.changed.wait_for(lambda: key in self.values, timeout_s)
            return self.values.get(key)

    def listing(self, prefix):
        with self.changed:
            return {key: value for key, value in self.values.items() if key.startswith(f"{prefix}/")}

    def delete(self, key):
        with self.changed:
            for each in [each for each in self.values if each == key or each.startswith(f"{key}/")]:
                del self.values[each]


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
        self.dead: set[Life] = set()

    def of(self, life: Life, dies: Callable[[], None] | None = None):
        return lambda sheet, rank: _Clique(self, sheet, rank, life, dies)

    def bury(self, life):
        with self.lock:
            self.dead.add(life)
            self.lock.notify_all()


class _Clique:
    def __init__(self, cliques, sheet: Sheet, rank, life, dies):
        self.cliques, self.sheet, self.rank, self.life, self.dies = cliques, sheet, rank, life, dies
        self.count, self.interrupted = 0, False

    def total(self, parts):
        self.count += 1
        if self.dies is not None:
            self.dies()
        cliques, key = self.cliques, (self.sheet.clique, self.count)
        with cliques.lock:
            found = cliques.parts.setdefault(key, {})
            found[self.rank] = parts
            cliques.lock.notify_all()

            def is_over():
                return len(found) == len(self.sheet.lives) or self.interrupted or cliques.dead & {*self.sheet.lives}

            assert cliques.lock.wait_for(is_over, SECONDS)
            if len(found) < len(self.sheet.lives):
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
        self.results: dict[Life, float] = {}
        self.errors: dict[Life, BaseException] = {}
        self.journal: dict[int, set[tuple[int, ...]]] = {}
        self.threads: dict[Life, threading.Thread] = {}
        self.stopped: set[Life] = set()
        self.last = sys.maxsize  # the round after which all end
        self.rounds: dict[Life, set[int]] = {}
        self.pulse: threading.Thread | None = None

    def meeting(self, life, dies_at=None, after=False, dies_in_sum=None, watch: Watch | None = None):
        board = Board(MortalStore(self.store, dies_at, after, functools.partial(self._is_dead, life)))
        patience = Patience(SECONDS, self.stall_s, end=SECONDS, again=0.005, stall=self.stall_s)
        return ElasticMeeting(board, life, self.names, self.cliques.of(life, dies_in_sum), patience, watch)

    def start(self, life, rounds, **how):
        thread = threading.Thread(target=self._run, args=(life, rounds, how), daemon=True)
        self.threads[life] = thread
        thread.start()

    def beat(self):
        """Gives signs of life from then on, for all who are not stopped."""
        self.pulse = threading.Thread(target=self._beat, daemon=True)
        self.pulse.start()

    def _beat(self):
        for count in itertools.count():
            running = [life for life, thread in list(self.threads.items()) if thread.is_alive()]
            for life in {*running} - self.stopped:
                Board(self.store).beat(life, count, f"{count}")
            if not running:
                return
            time.sleep(0.02)

    def _is_dead(self, life):
        while life in self.stopped:
            time.sleep(0.01)
        return life in self.cliques.dead

    def join(self):
        deadline = time.monotonic() + SECONDS
        for thread in [*self.threads.values(), *filter(None, [self.pulse])]:
            thread.join(max(0.0, deadline - time.monotonic()))
        assert not [life for life, thread in self.threads.items() if thread.is_alive()], "hangs"

    def done_by(self, life):
        """Returns the rounds that a life has made."""
        return self.rounds.get(life, set())

    def _run(self, life, rounds, how):
        wait_s = how.pop("wait_s", 0.0)
        predecessor = how.pop("waits_for", None)
        if predecessor is not None:  # The launcher starts it when that one has ended.
            with self.store.changed:
                key = f"gone/{predecessor.index}/{predecessor.number}"
                assert self.store.changed.wait_for(lambda: key in self.store.values, SECONDS)
        try:
            meeting = self.meeting(life, **how)
            self.results[life] = self.train(meeting, rounds, wait_s)
            meeting.leave()
        except Died:
            Board(self.store).end(life)  # As the launcher tells.
            self.cliques.bury(life)
        except BaseException as error:
            self.errors[life] = error

    def train(self, meeting, rounds, wait_s=0.0):
        value, done = 0.0, -1
        while done < min(rounds, self.last):
            time.sleep(wait_s)
            roll = meeting.gather("a round", str(done).encode())
            notes = [int(note) for note in roll.notes]
            newest = max(notes)
            old = [index for index, note in zip(roll.present, notes, strict=True) if note == newest]
            added = meeting.index + 1 if newest >= 0 else 0
            mine = (value + added) / len(old) if meeting.index in old else 0.0
            try:
                (total,) = meeting.total(roll, [jnp.full(2, mine)])
            except MemberLostError:
                continue
            value, done = float(total[0]), newest + 1
            self.journal.setdefault(done, set()).add(tuple(old))
            self.rounds.setdefault(meeting.life, set()).add(done)
        return value

    def expected(self):
        """Returns the last value: each round has one list of those who took part."""
        value = 0.0
        for number in sorted(self.journal):
            (old,) = self.journal[number]
            value += sum(index + 1 for index in old) / len(old) if number else 0.0
        return value
