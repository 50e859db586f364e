"""The monitor: a thread in each worker that watches the others, even while its own main thread is blocked."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import cast

from replicax.cluster.exchange import accompany
from replicax.cluster.patience import Patience
from replicax.compat.jax_interrupts import explain_reads
from replicax.errors.exit_codes import ExitCode, from_signal
from replicax.group.health.alarm import PATIENCE, Alarm, Connections
from replicax.group.health.diagnosis import DONE, Diagnosis, Limits, WorkerObservation, diagnose, disagrees, diverged
from replicax.group.health.observer import Observer
from replicax.group.health.peers import WATCHING, Peer, tell
from replicax.group.health.programs import AnnouncedProgram, ProgramComparison
from replicax.group.health.reporting import AlarmReport, alarm_report, gather, table, write
from replicax.group.health.status import Status, status_of
from replicax.group.health.traffic import Traffic
from replicax.runtime.activity import LEAVE, now
from replicax.runtime.call_order import (
    ArgumentValue,
    CallDescription,
    Order,
    RecordedCall,
    order_from,
    recorded_call_from,
)
from replicax.runtime.ending import only_here

_log = logging.getLogger(__name__)
# Parts of the time between two looks: until it asks again if nobody listened; that it waits for each worker before it,
# which may raise the alarm.
_TO_CONFIRM, _FOR_THE_FIRST = 0.3, 1.2
_SECONDS_BETWEEN_REMINDERS = 60.0  # of log messages
_EXCHANGE = "an exchange of values"  # These say themselves what they are, each to the others.
_LOOKS_FOR_AN_ALARM = 30  # at most; the next one should raise the alarm


def running() -> Monitor | None:
    """Returns the monitor of this process; None if there is none."""
    return cast("Monitor | None", now.monitor)


class Monitor:
    """Watches the peers."""

    def __init__(
        self,
        index: int,
        name: str,
        address: str,
        peers: Sequence[Peer],
        limits: Limits,
        traffic: Traffic | None = None,
        end: Callable[[int], object] = os._exit,
        clock: Callable[[], float] = time.monotonic,
        patience: Patience = PATIENCE,
        watching: Patience = WATCHING,
    ):
        self.peers, self.programs, self.order = tuple(peers), ProgramComparison(index, name), Order()
        self._by_index: Mapping[object, Peer] = {peer.index: peer for peer in self.peers}
        self._index, self._name, self._limits, self._patience, self._watching = index, name, limits, patience, watching
        self._end, self._clock = end, clock
        traffic = Traffic(()) if traffic is None else traffic
        self.observer = Observer(index, name, address, self.peers, limits, traffic, clock, watching)
        self._wake, self._looked = threading.Event(), threading.Condition()
        self._looks = 0
        self._told: Mapping[str, object] | None = None
        self._error: BaseException | None = None
        self._ended, self._left, self._exits = "", False, False
        self._connections = Connections(len(self.peers) + 1, patience=patience)
        # A dead peer is noticed within three looks.
        self.alarm = Alarm(self._connections, lambda: self._wait_for_looks(3), patience)

    # Questions of the server.

    def status(self) -> Mapping[str, object]:
        return dataclasses.asdict(self._own_status())

    def program(self, index: int) -> Mapping[str, object] | None:
        return self.programs.get(index)

    def call(self, number: int) -> RecordedCall | None:
        return self.order.get(number)

    def note_outside(self, what: str = "", kind: str = _EXCHANGE) -> None:
        """Notes that the script has come to something that all do together outside of programs."""
        if threading.get_ident() == now.thread:
            now.noted += 1
            self.order.note(CallDescription.outside(what or now.wait[0] or _EXCHANGE, kind))

    def is_new(self, name: str) -> bool:
        """Returns whether this is the first computation of this name."""
        return self.programs.is_new(name)

    def announce(self, name: str, fingerprint: str, arguments: tuple[ArgumentValue, ...] = ()) -> int:
        """Makes a program known to peers that ask; returns its index."""
        return self.programs.announce(AnnouncedProgram(name, fingerprint, arguments))

    def compare(self, index: int, wait: bool) -> None:
        """Compares an announced program with the peers'."""
        self.programs.compare(index, self.peers, wait)

    def on_alarm(self, document: Mapping[str, object]) -> None:
        self._told = self._told or document
        self._wake.set()

    def on_goodbye(self, document: Mapping[str, object]) -> None:
        peer = self._by_index.get(document.get("index"))
        if peer is not None:
            peer.history.ended(str(document.get("ended") or DONE), order_from(document.get("order")))
        with self._looked:
            self._looked.notify_all()

    # The thread.

    def start(self) -> None:
        """Begins to watch the peers."""
        threading.Thread(target=self._run, name="replicax-health-monitor", daemon=True).start()

    def _run(self) -> None:
        pause = 0.0
        while not self._left:
            self._wake.wait(pause)
            if self._told is not None:
                return self._obey(self._told)
            try:
                pause = self._look()
            except Exception:  # A bug here must not silently leave the job without a monitor.
                _log.exception("The health monitor failed to watch the other workers; it goes on.")
                pause = self._watching.again

    def _look(self) -> float:
        """Asks all peers once and returns how long to pause. If something is wrong, the process ends here."""
        self.observer.look()
        self._connections.look(now.calls)
        workers = self.workers()
        other = disagrees(self.order, self._index, workers)
        if other is not None:
            peer = self._by_index[other]
            if not _has_taken_back(peer, workers[other].status):
                self._alarm(_divergence(self.order, self._index, peer, workers))
        else:
            diagnosis = diagnose(workers, self._limits)
            if diagnosis is not None and self.observer.is_sparse:  # Some answers may be from a while ago.
                self.observer.look(everybody=True)
                diagnosis = diagnose(self.workers(), self._limits)
            if diagnosis is not None and not self.observer.notice_own_pause():
                self._alarm(diagnosis)
        with self._looked:
            self._looks += 1
            self._looked.notify_all()
        return self._watching.again * (_TO_CONFIRM if any(w.refusals for w in workers if w.runs) else 1.0)

    def workers(self) -> list[WorkerObservation]:
        """Returns what is known of all workers, in order."""
        return self.observer.workers(self._own_status())

    def _own_status(self) -> Status:
        return dataclasses.replace(status_of(ended=self._ended), order=self.order.last)

    def report(self) -> str:
        """Returns what all workers are doing now."""
        answers = gather(self.peers) | {self._index: (self._own_status(), "")}
        return table(self.workers(), answers)

    # The alarm.

    def _alarm(self, diagnosis: Diagnosis) -> None:
        # Workers with a lower index have time to raise the alarm, so that all report the same one.
        before = [i for i, w in enumerate(self.workers()) if w.runs and i < self._index and i not in diagnosis.culprits]
        self._wake.wait(_FOR_THE_FIRST * self._watching.again * min(len(before), 2))
        if self._told is not None:
            return self._obey(self._told)
        workers, answers = self.workers(), gather(self.peers)
        report = alarm_report(diagnosis, workers, self._index, answers, self.observer.note)
        document = {**dataclasses.asdict(report), "code": int(diagnosis.exit_code), "culprits": diagnosis.culprits}
        reached = [peer for peer in self.peers if peer.index in answers]
        self._end_with(
            report, diagnosis.exit_code, diagnosis.culprits, reached, lambda: tell(reached, "/alarm", document)
        )

    def _obey(self, document: Mapping[str, object]) -> None:
        """Ends as another worker's alarm says, with the same report."""
        told, culprits = document.get("code"), document.get("culprits")
        code = told if isinstance(told, int) else ExitCode.STALLED
        report = AlarmReport(str(document.get("text")), str(document.get("summary")))
        reached = [peer for peer in self.peers if peer.history.seen(self._clock()).refusals == 0]
        self._end_with(report, code, culprits if isinstance(culprits, list) else [], reached)

    def _end_with(
        self,
        report: AlarmReport,
        code: int,
        culprits: Sequence[int],
        reached: Sequence[Peer],
        tell_others: Callable[[], object] = lambda: None,
    ) -> None:
        """Ends the process with an alarm: by an error in the script, if that comes in time."""
        workers = self.workers()
        names = [worker.name for i, worker in enumerate(workers) if i in culprits]
        own_code = int(_exit_code(self._error, self._index, code, culprits))
        own = workers[self._index].status
        # After wrong numbers the script must save nothing. A culprit that does not wait for others is stuck.
        is_stuck = self._index in culprits and own is not None and own.waiting is None
        in_script = code != ExitCode.DIVERGED and not self._exits and not is_stuck
        write(report, self._name, own_code, names, not in_script, self._watching.end)
        tell_others()
        if in_script:
            self.alarm.ring(report.summary, own_code, names)
            with self._looked:
                self._looked.notify_all()
            self.alarm.wait_for_script()
        self._leave(own_code, reached, self._patience.start + self._patience.end if in_script else 0.0)

    def _leave(self, code: int, reached: Sequence[Peer], longer_s: float = 0.0) -> None:
        if (
            self._index == 0
        ):  # It goes last, because JAX ends the others as soon as the service in this process is gone.
            deadline = time.monotonic() + self._watching.end + longer_s
            while reached and time.monotonic() < deadline:
                time.sleep(0.05)
                reached = [peer for peer in reached if peer.is_there()]
        self._left = True
        self.observer.close()
        self._end(code)

    # The end of the script.

    def on_error(self, error: BaseException) -> None:
        """Notes that the script ends with an error; a dead peer may have caused it, so all are asked from now on."""
        self._error = error
        self.observer.asks_all = True

    def at_exit(self) -> None:
        """Says goodbye to the peers and waits until their scripts have ended. Then JAX may shut down."""
        self._exits = True
        self._connections.close()
        if self.alarm.is_raised:
            return _exit_after(self.alarm)
        if self._error is not None:
            # If a dead peer caused the error, the alarm says so, and the process ends there.
            begun = self._clock()
            self._wait_for_looks(3, lambda: all(peer.history.is_known_since(begun) for peer in self.peers))
        error = self._error
        now.turn(LEAVE)
        self._ended = DONE if error is None else f"{type(error).__name__}: {error}"[:500]
        goodbye = {"index": self._index, "ended": self._ended, "order": self.order.last}
        tell(self.peers, "/goodbye", goodbye)
        if (
            error is not None and _code_of(error) != ExitCode.FAILED
        ):  # The others end in the same way, so there is nobody to wait for.
            self._wait_for_looks(3)
            logging.shutdown()
            return self._leave(_code_of(error), self.peers)
        # JAX closes the connections of the collectives when it shuts down. A peer that still computes would then fail
        # with an error that does not name the cause. The monitor goes on watching until the process is gone.
        try:
            self._wait_for_ends()
            if disagrees(self.order, self._index, self.workers()) is not None:
                self._wait_for_looks(_LOOKS_FOR_AN_ALARM)  # The thread raises it, and the process ends there.
                self._leave(ExitCode.DIVERGED, ())
        except KeyboardInterrupt:
            self._leave(from_signal(signal.SIGINT), ())

    def _wait_for_ends(self) -> None:
        """Waits until all scripts that can be watched have ended. The thread ends a wait that takes too long."""
        remind_at = self._clock() + _SECONDS_BETWEEN_REMINDERS
        running: list[Peer] = []
        while running or (running := self._running(self.peers)):
            if not self._running(running[-1:]):  # Only one is looked at: each of thousands of goodbyes comes here.
                running.pop()
                continue
            with self._looked:
                self._looked.wait(self._watching.again)
            if self._clock() >= remind_at:
                remind_at += _SECONDS_BETWEEN_REMINDERS
                names = ", ".join(peer.history.name for peer in self._running(running))
                _log.warning("%s has ended (%s) and waits for %s.", self._name, self._ended, names)

    def _running(self, peers: Sequence[Peer]) -> list[Peer]:
        return [peer for peer in peers if peer.history.seen(self._clock()).runs]

    def _wait_for_looks(self, count: int, is_enough: Callable[[], bool] = lambda: False) -> None:
        self.observer.asks_all = True
        with self._looked:
            goal = self._looks + count
            self._wake.set()
            self._wake.clear()
            seconds = count * (self._watching.again + self._watching.silence)
            self._looked.wait_for(lambda: self._looks >= goal or self.alarm.is_raised or is_enough(), seconds)


def _exit_after(alarm: Alarm) -> None:
    """Lets the monitor end the process, which knows the exit code and whether others still need this process."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    logging.shutdown()
    alarm.end()
    threading.Event().wait()


def _divergence(order: Order, me: int, peer: Peer, workers: Sequence[WorkerObservation]) -> Diagnosis:
    """Returns the alarm that a peer has run other programs. Asks it which, if it still answers."""
    status = workers[peer.index].status
    assert status is not None
    mine = theirs = None
    with contextlib.suppress(OSError, ValueError):  # It may be gone. The workers differ all the same.
        mine, theirs = order.difference(
            status.order, lambda number: recorded_call_from(peer.client.call(number, peer.seconds_to_answer))
        )
    return diverged(me, peer.index, workers, mine, theirs)


def _has_taken_back(peer: Peer, told: Status | None) -> bool:
    """Returns whether a peer has taken back the last call that it told of (`calls.take_back`)."""
    if told is None or told.ended:
        return False
    number, digest = told.order
    with contextlib.suppress(OSError, ValueError):  # It may be gone. The workers differ all the same.
        call = recorded_call_from(peer.client.call(number, peer.seconds_to_answer))
        return call is None or call.digest != digest
    return False


def _exit_code(error: BaseException | None, me: int, code: int, culprits: Sequence[int]) -> int:
    """Returns the exit code after an alarm: that of the script's error, if this worker's failure caused the alarm."""
    if error is None or me not in culprits or code == ExitCode.DIVERGED:
        return code
    return _code_of(error)


def _code_of(error: BaseException) -> int:
    return int(getattr(error, "exit_code", ExitCode.FAILED))


def install(monitor: Monitor) -> None:
    """Makes `monitor` the monitor of this process: it starts, learns of uncaught errors, and says goodbye at exit."""
    previous, on_error = sys.excepthook, only_here(monitor.on_error)

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        on_error(error)
        previous(kind, error, traceback)

    sys.excepthook = hook
    now.monitor, now.check, now.explain = monitor, monitor.alarm.check, monitor.alarm.explain
    explain_reads(monitor.alarm.explain)
    accompany(monitor.alarm.check, monitor.note_outside)
    monitor.start()
    atexit.register(only_here(_at_exit), monitor)


def _at_exit(monitor: Monitor) -> None:
    with contextlib.suppress(Exception):  # An error here must not change how the script ends.
        monitor.at_exit()
