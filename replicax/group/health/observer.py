"""The eyes of a monitor: it asks the peers once a second, and notes what it finds out itself.

Of many peers it asks some in a second, one after the other, and each that did not answer last again: n workers that
each ask all others are n * n questions a second. A worker that dies is asked within a moment nevertheless, by the
worker whose turn it is, and that one tells all.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from replicax.cluster.patience import Patience
from replicax.group.health.diagnosis import Limits, WorkerObservation
from replicax.group.health.peers import WATCHING, Peer
from replicax.group.health.status import Status, status_from
from replicax.group.health.traffic import Traffic
from replicax.runtime.activity import now

_log = logging.getLogger(__name__)
_MOST_AT_ONCE = 128  # threads that ask
_MOST_IN_A_LOOK = 64  # peers that are asked, unless all must be asked more often
_BYTES_OF_PROGRESS = 4096  # between two looks; fewer bytes may come from anything


class Observer:
    """Asks the peers."""

    def __init__(
        self,
        index: int,
        name: str,
        address: str,
        peers: Sequence[Peer],
        limits: Limits,
        traffic: Traffic,
        clock: Callable[[], float],
        patience: Patience = WATCHING,
    ):
        self.note, self.asks_all = "", False  # for a report, of this process; whether each look asks all peers
        self._index, self._name, self._address = index, name, address
        self._peers, self._limits, self._traffic, self._clock = peers, limits, traffic, clock
        self._begin = self._last = clock()
        self._patience = patience
        self._unreachable_told = False
        self._by_index = {peer.index: peer for peer in peers}
        self._asking = QuestionThreads(lambda index: self._ask(self._by_index[index]), _MOST_AT_ONCE, clock)
        # Each peer is asked twice in the time after which silence is an alarm, even if all are silent and take turns.
        turns = max(1.0, len(peers) / _MOST_AT_ONCE)
        self._answer_s = max(patience.silence, limits.stall / 2 / turns)
        self._in_a_look = max(_MOST_IN_A_LOOK, math.ceil(4 * len(peers) * patience.again / limits.stall))
        later = [*itertools.dropwhile(lambda peer: peer.index < index, peers)]
        self._turns = itertools.cycle([*later, *peers[: len(peers) - len(later)]])  # Each worker begins with another.

    @property
    def is_sparse(self) -> bool:
        """Whether a look asks some of the peers."""
        return not self.asks_all and len(self._peers) > self._in_a_look

    def look(self, everybody: bool = False) -> None:
        """Asks peers, and notes the answers and the silences."""
        self.notice_own_pause()
        peers = self._peers if everybody or not self.is_sparse else self._next_peers()
        self._asking.begin(peer.index for peer in peers if not peer.history.seen(self._clock()).has_left)
        self._asking.wait(self._patience.silence)  # Later answers count in the next look.
        self.notice_own_pause()
        for index in self._asking.late(self._answer_s):
            self._by_index[index].history.unheard()
        self._notice_traffic()
        self._warn_of_unreachable()

    def _next_peers(self) -> list[Peer]:
        """Returns the peers whose turn it is, and those that did not answer last."""
        chosen = {peer.index: peer for peer in itertools.islice(self._turns, self._in_a_look)}
        return [*chosen.values(), *(p for p in self._peers if p.history.missed and p.index not in chosen)]

    def workers(self, own_status: Status) -> list[WorkerObservation]:
        """Returns what is known of all workers, in order; `own_status` is this one's."""
        time_now = self._clock()
        me = WorkerObservation(self._name, self._address, own_status)
        seen = {peer.index: peer.history.seen(time_now) for peer in self._peers} | {self._index: me}
        return [seen[i] for i in sorted(seen)]

    def close(self) -> None:
        """Stops asking."""
        self._asking.close()

    def _ask(self, peer: Peer) -> None:
        begun = self._clock()
        try:
            status = status_from(peer.client.status(self._answer_s))
        except ConnectionRefusedError:  # If it only hangs up, the server is there and may have too many connections.
            peer.history.refused()
        except (OSError, ValueError):
            peer.history.unheard()
        else:
            peer.history.answered(status, self._clock(), self._clock() - begun)
            if self.is_sparse:
                peer.client.close()  # Thousands of connections would wait for their next question.

    def notice_own_pause(self) -> bool:
        """Returns whether this process was stopped for a while. Then the silence of the others means nothing."""
        # Other threads ask the questions, so nothing in this one takes longer than about a second between two calls,
        # however slow the answers are.
        time_now = self._clock()
        away = time_now - self._last - self._patience.again
        self._last = time_now
        paused = away > max(self._patience.silence, self._limits.stall / 2)
        if paused:
            self.note = f"({self._name} itself had been stopped, or kept from looking, for {away:.1f} s.)"
            for peer in self._peers:
                peer.history.forgive(time_now)
        return paused

    def _notice_traffic(self) -> None:
        """Notes that bytes flow: then workers that wait are slow, not stuck."""
        if now.wait_for_others() is not None and self._traffic.moved() >= _BYTES_OF_PROGRESS:
            now.moved = time.monotonic()

    def _warn_of_unreachable(self) -> None:
        missing = [] if self._unreachable_told else [p.history.name for p in self._peers if not p.reachable]
        turns = len(self._peers) / self._in_a_look * (self._patience.again + self._patience.silence)
        if missing and self._clock() - self._begin > self._patience.start + turns:
            self._unreachable_told = True
            _log.warning("%s cannot be watched: no answer from its health server.", ", ".join(missing))


class QuestionThreads:
    """At most `at_once` threads that `ask` workers, by their index, and stay for the next questions.

    A worker that is slow to answer delays no other.
    """

    def __init__(self, ask: Callable[[int], None], at_once: int, clock: Callable[[], float] = time.monotonic):
        self._ask, self._at_once, self._clock = ask, at_once, clock
        self._changed = threading.Condition()
        self._waiting: deque[int] = deque()
        self._open: dict[int, float | None] = {}  # worker: since when it is asked; None while it waits for its turn
        self._threads, self._closed = 0, False

    def begin(self, workers: Iterable[int]) -> None:
        """Asks some workers, except those whose last question is still open."""
        with self._changed:
            for worker in workers:
                if worker not in self._open:
                    self._open[worker] = None
                    self._waiting.append(worker)
            while self._threads < min(self._at_once, len(self._open)):
                self._threads += 1
                threading.Thread(target=self._run, name="replicax-health-asking", daemon=True).start()
            self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Returns when no question is open, or after `seconds`."""
        with self._changed:
            self._changed.wait_for(lambda: not self._open, seconds)

    def late(self, seconds: float) -> list[int]:
        """Returns the workers whose question has been open for `seconds`, without the time before its turn."""
        now = self._clock()
        with self._changed:
            return [worker for worker, since in self._open.items() if since is not None and now - since >= seconds]

    def close(self) -> None:
        """Stops asking; the threads end when their questions are answered."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                worker = self._waiting.popleft()
                self._open[worker] = self._clock()
            try:
                self._ask(worker)
            except Exception:  # A bug here must not silently leave the worker unwatched.
                _log.exception("The health monitor failed to ask worker %d; it goes on.", worker)
            finally:
                with self._changed:
                    del self._open[worker]
                    self._changed.notify_all()
