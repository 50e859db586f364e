"""Elastic workers that are threads: they sum the rows of global batches, and one of them ends at a chosen moment."""

from __future__ import annotations

import faulthandler
import functools
import itertools
import sys
import threading
import time

import numpy as np

from replicax.cluster.patience import Patience
from replicax.group.membership.job_store import Board
from replicax.group.membership.quorum import Life
from replicax.group.membership.elastic_meeting import ElasticMeeting, Rules
from replicax.group.membership.elastic_worlds import ElasticWorlds
from replicax.group.membership.opening import _is_given_state
from replicax.group.membership.interrupter import Sentry
from tests.group.membership.fakes import SECONDS, Cliques, Died, MemoryStore, MortalStore

ROWS = 12  # of a global batch: it divides by each number of workers here
_STEP_S = 0.02


def rows_of(number):
    """Returns the rows of a global batch."""
    return np.random.default_rng(number).integers(0, 1000, ROWS)


class Count:
    """The state of the training: how many batches it has seen, and their sum."""

    def __init__(self):
        self.batches, self.total = 0, 0

    def give(self):
        return [np.array([self.batches, self.total], np.int64)], b"count"

    def take(self, arrays, meta):
        assert meta == b"count"
        self.batches, self.total = map(int, arrays[0])

    def is_boundary(self, places):
        return True


class Workers:
    """Elastic workers; `dies` maps a life to the operation on the board at which it ends, and whether after it.

    Args:
        size: How many begin.
        dies: Which lives end, and when.
    """

    def __init__(self, size, dies=None):
        self.store, self.cliques, self.size, self.dies = MemoryStore(), Cliques(), size, dies or {}
        self.names = [f"worker:{index}" for index in range(size)]
        self.last = sys.maxsize  # the batch after which all end
        self.counts: dict[Life, Count] = {}
        self.operations: dict[Life, int] = {}
        self.ended: dict[Life, BaseException | None] = {}
        self.worlds: dict[int, set[tuple[int, ...]]] = {}
        self.steps: dict[int, set[tuple[Life, int, int]]] = {}
        self._threads: list[threading.Thread] = []
        self._done = threading.Event()

    def start(self, life):
        """Starts a worker; the launcher does so again whenever one has died."""
        self._in_thread(self._run, life)

    def beat(self):
        """Gives the signs of life of all who run, until `join`."""
        self._in_thread(self._beat)

    def join(self):
        """Waits for the end of all."""
        deadline = time.monotonic() + SECONDS
        running = [life for life in self.counts if life not in self.ended]
        while running and time.monotonic() < deadline:
            time.sleep(0.01)
            running = [life for life in [*self.counts] if life not in self.ended]
        if running:
            faulthandler.dump_traceback()
        self._done.set()
        assert not running, f"{running} hang: {self.worlds}"
        for thread in self._threads:
            thread.join(SECONDS)

    def until(self, is_so):
        """Waits until something is so."""
        deadline = time.monotonic() + SECONDS
        while not is_so():
            assert time.monotonic() < deadline, f"{self.worlds}, {self.ended}"
            time.sleep(0.01)

    def present(self):
        """Returns the members of the newest world; none before the first."""
        return next(iter(self.worlds[max(self.worlds)])) if self.worlds else ()

    def end_soon(self):
        """Lets all end after some more batches."""
        self.last = max(count.batches for count in self.counts.values()) + 5

    def _in_thread(self, function, *args):
        thread = threading.Thread(target=function, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _beat(self):
        for count in itertools.count():
            for life in [life for life in [*self.counts] if life not in self.ended]:
                Board(self.store).beat(life, count, f"{count}")
            if self._done.wait(0.05):
                return

    def _run(self, life):
        self.counts[life] = Count()
        try:
            self._train(life)
            self.ended[life] = None
        except Died as died:
            self.ended[life] = died
            Board(self.store).end(life)  # As the launcher tells.
            self.cliques.bury(life)
            self.start(Life(life.index, life.number + 1))
        except BaseException as error:
            self.ended[life] = error
            Board(self.store).end(life)
            self.cliques.bury(life)

    def _train(self, life):
        dies_at, after = self.dies.get(life, (None, False))
        is_dead = functools.partial(self.cliques.dead.__contains__, life)
        store = MortalStore(self.store, dies_at, after, is_dead)
        patience = Patience(SECONDS, SECONDS, end=SECONDS, again=0.005, stall=SECONDS)
        rules = Rules(self.size, 1, renews=True, admits=_is_given_state)
        meeting = ElasticMeeting(Board(store), life, self.names, self.cliques.of(life), patience, rules=rules)
        is_newcomer = meeting.has_begun()
        sentry = Sentry(Board(self.store), life, meeting, patience._replace(again=0.01), lost=lambda why: None)
        worlds, count = ElasticWorlds(meeting, sentry, 1), self.counts[life]
        worlds.state = count
        try:
            worlds.begin(is_newcomer)
            worlds.join()
            while count.batches < self.last:
                self.worlds.setdefault(worlds.world.number, set()).add(worlds.world.members)
                worlds.boundary()
                if count.batches >= self.last:
                    break
                found = worlds.attempt(functools.partial(self._call, worlds, meeting, count))
                self.steps.setdefault(count.batches, set()).add((life, worlds.world.number, found))
                count.total += found
                count.batches += 1
                self.operations[life] = store.operations
                time.sleep(_STEP_S)
            worlds.finish()
            worlds.leave()
        finally:
            sentry.stop()

    def _call(self, worlds, meeting, count):
        def run():
            members = worlds.world.members
            rows = np.split(rows_of(count.batches), len(members))[members.index(meeting.index)]
            part = np.array([rows.sum()])
            return int(part[0] if len(members) == 1 else meeting.clique.total([part])[0][0])

        return worlds.executed(run, lambda found: [np.array([found], np.int64)], lambda found: int(found[0][0]))
