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
from replicax.contracts.group import Incarnation
from replicax.group.membership.elastic_group import ElasticGroup
from replicax.group.membership.elastic_meeting import ElasticMeeting, Rules
from replicax.group.membership.interrupter import CollectiveInterrupter
from replicax.group.membership.job_store import JobStore
from replicax.group.membership.opening import _is_given_state
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
    """Elastic workers; `dies` maps an incarnation to the operation on the store at which it ends, and whether after it.

    Args:
        size: How many begin.
        dies: Which incarnations end, and when.
    """

    def __init__(self, size, dies=None):
        self.store, self.cliques, self.size, self.dies = MemoryStore(), Cliques(), size, dies or {}
        self.names = [f"worker:{index}" for index in range(size)]
        self.last = sys.maxsize  # the batch after which all end
        self.counts: dict[Incarnation, Count] = {}
        self.operations: dict[Incarnation, int] = {}
        self.ended: dict[Incarnation, BaseException | None] = {}
        self.worlds: dict[int, set[tuple[int, ...]]] = {}
        self.steps: dict[int, set[tuple[Incarnation, int, int]]] = {}
        self._threads: list[threading.Thread] = []
        self._done = threading.Event()

    def start(self, incarnation):
        """Starts a worker; the launcher does so again whenever one has died."""
        self._in_thread(self._run, incarnation)

    def beat(self):
        """Gives the signs of life of all who run, until `join`."""
        self._in_thread(self._beat)

    def join(self):
        """Waits for the end of all."""
        deadline = time.monotonic() + SECONDS
        running = [incarnation for incarnation in self.counts if incarnation not in self.ended]
        while running and time.monotonic() < deadline:
            time.sleep(0.01)
            running = [incarnation for incarnation in [*self.counts] if incarnation not in self.ended]
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
            for incarnation in [incarnation for incarnation in [*self.counts] if incarnation not in self.ended]:
                JobStore(self.store).beat(incarnation, count, f"{count}")
            if self._done.wait(0.05):
                return

    def _run(self, incarnation):
        self.counts[incarnation] = Count()
        try:
            self._train(incarnation)
            self.ended[incarnation] = None
        except Died as died:
            self.ended[incarnation] = died
            JobStore(self.store).end(incarnation)  # As the launcher tells.
            self.cliques.bury(incarnation)
            self.start(Incarnation(incarnation.index, incarnation.number + 1))
        except BaseException as error:
            self.ended[incarnation] = error
            JobStore(self.store).end(incarnation)
            self.cliques.bury(incarnation)

    def _train(self, incarnation):
        dies_at, after = self.dies.get(incarnation, (None, False))
        is_dead = functools.partial(self.cliques.dead.__contains__, incarnation)
        store = MortalStore(self.store, dies_at, after, is_dead)
        patience = Patience(SECONDS, SECONDS, end=SECONDS, again=0.005, stall=SECONDS)
        rules = Rules(self.size, 1, renews=True, admits=_is_given_state)
        meeting = ElasticMeeting(
            JobStore(store), incarnation, self.names, self.cliques.of(incarnation), patience, rules=rules
        )
        is_newcomer = meeting.has_begun()
        interrupter = CollectiveInterrupter(
            JobStore(self.store), incarnation, meeting, patience._replace(again=0.01), lost=lambda why: None
        )
        worlds, count = ElasticGroup(meeting, interrupter, 1), self.counts[incarnation]
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
                self.steps.setdefault(count.batches, set()).add((incarnation, worlds.world.number, found))
                count.total += found
                count.batches += 1
                self.operations[incarnation] = store.operations
                time.sleep(_STEP_S)
            worlds.finish()
            worlds.leave()
        finally:
            interrupter.stop()

    def _call(self, worlds, meeting, count):
        def run():
            members = worlds.world.members
            rows = np.split(rows_of(count.batches), len(members))[members.index(meeting.index)]
            part = np.array([rows.sum()])
            return int(part[0] if len(members) == 1 else meeting.clique.total([part])[0][0])

        return worlds.executed(run, lambda found: [np.array([found], np.int64)], lambda found: int(found[0][0]))
