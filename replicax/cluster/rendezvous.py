"""The rendezvous: the processes of a job wait until all of them are there, before JAX connects them.

JAX's own wait aborts the process when its time is up, and does not say which process was missing. So process 0 first
listens at the address where JAX's coordination service will be. Each other process sends it a greeting, a line of JSON.
Once a second process 0 asks those that have come whether they are still there, and tells them which are not. When all
are there, it sends the information of all to all. After that the port is free for JAX.

The connections stay open while JAX connects. Nobody can interrupt JAX there, so it runs in a thread, and the questions
go on: an error then names a process that stops or dies at that time too.
"""

from __future__ import annotations

import contextlib
import functools
import hmac
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, TypedDict, cast

from replicax.checks import environment_names
from replicax.cluster.addresses import parse_address
from replicax.cluster.lines import decoded, encoded, is_number
from replicax.cluster.patience import CONNECTING, Patience
from replicax.cluster.rendezvous_server import Greeting, RendezvousServer, listening, own
from replicax.cluster.signing import shown
from replicax.errors import ClusterError, ClusterTimeoutError
from replicax.runtime.threads import StoppedAtEnd

_log = logging.getLogger(__name__)
_SECONDS_BETWEEN_TRIES = 0.1  # to connect with process 0
_SECONDS_BETWEEN_KNOCKS = 0.005  # at JAX's service
_SECONDS_BETWEEN_GLANCES = 0.05  # at the work
_MOST_REPORTED = 20  # processes that a warning names
_WHILE_CONNECTING = "; all had come, and JAX was connecting them"
_GUEST, _HOST = "process", "process 0"  # for what the token is shown

Infos: TypeAlias = list[dict[str, object]]  # of all processes, in their order, as JSON can hold them


def meet(
    address: str,
    process: int,
    names: Sequence[str],
    info: Mapping[str, object],
    timeout_s: float,
    token: str = "",
    work: Callable[[Infos], None] = lambda infos: None,
    patience: Patience = CONNECTING,
) -> list[dict[str, object]]:
    """Returns what of their `info` is each process's own, when all have called it and done their `work`, in a thread.

    Keys that begin with "same " have the same value in all processes, or `meet` raises a `ClusterError`.
    """
    try:
        token.encode()
    except UnicodeEncodeError:
        raise ClusterError(
            environment_names.TOKEN, None, "has bytes that are not UTF-8", "Take letters and digits."
        ) from None
    waiting = _Waiting(address, process, list(names), timeout_s, work, token, patience)
    # The token does not travel. A process that does not know it is refused, and so is a process 0.
    knows = shown(token, _GUEST)
    greeting: Greeting = {"process": process, "processes": len(names), "token": knows, "info": dict(info)}
    if process == 0:
        return _gather(waiting, greeting)
    return _join(waiting, greeting)


def await_listener(address: str, timeout_s: float) -> None:
    """Returns when a program listens at an address, or after `timeout_s` seconds."""
    # JAX's client tries only once a second, so a process that is a moment early would lose that second.
    where, deadline = parse_address(address, "coordinator address"), time.monotonic() + timeout_s
    while (left := deadline - time.monotonic()) > 0:
        with contextlib.suppress(OSError), socket.create_connection((where.host, where.port), timeout=left):
            return
        time.sleep(_SECONDS_BETWEEN_KNOCKS)


class _Waiting:
    """The wait of a process: its deadline, and the reports on it."""

    def __init__(
        self,
        address: str,
        process: int,
        names: list[str],
        timeout_s: float,
        work: Callable[[Infos], None],
        token: str,
        patience: Patience,
    ):
        self._work, self._token, self.patience = work, token, patience
        self.address, self.process, self.names, self.timeout_s = address, process, names, timeout_s
        self._start = time.monotonic()
        self._next_report = self._start + 3 * patience.again

    def begun(self, infos: Infos) -> Work:
        return Work(functools.partial(self._work, infos))

    def proof(self, infos: Infos) -> str:
        """Returns what shows that process 0 knows the token, and has told this."""
        return shown(self._token, f"{_HOST} {json.dumps(infos)}")

    @property
    def deadline(self) -> float:
        return self._start + self.timeout_s

    def soon(self) -> float:
        """Returns when to stop waiting for a socket: at the next report or the deadline."""
        return min(self.deadline, self._next_report)

    def report(self, missing: Sequence[int], note: str = "", unnamed: int = 0) -> None:
        """Logs from time to time which processes are missing, or only the note if none is known to be."""
        now = time.monotonic()
        if now < self._next_report:
            return
        self._next_report = now + 10 * self.patience.again
        if not missing:
            _log.warning("%s has waited %.0f s for others%s", self.names[self.process], now - self._start, note)
            return
        here, all_ = len(self.names) - len(missing) - unnamed, len(self.names)
        named = ", ".join(self.names[i] for i in missing[:_MOST_REPORTED])
        unnamed += max(0, len(missing) - _MOST_REPORTED)
        absent = named + (f" and {unnamed} others" if unnamed else "")
        _log.warning("%d of %d processes here after %.0f s; missing %s%s", here, all_, now - self._start, absent, note)

    def over(self, missing: Sequence[int], note: str = "") -> ClusterTimeoutError:
        """Returns the error for a wait that has failed."""
        return ClusterTimeoutError(
            self.names[self.process], self.timeout_s, [self.names[i] for i in missing], self.address, note
        )


def _gather(waiting: _Waiting, mine: Greeting) -> list[dict[str, object]]:
    with listening(waiting.address) as listener, RendezvousServer(listener, mine, waiting.patience) as gathering:
        while not gathering.complete():
            if time.monotonic() >= waiting.soon():  # It takes a while where thousands are missing.
                absent, note = _absent(waiting, gathering)
                if time.monotonic() >= waiting.deadline:
                    gathering.tell({"over": absent, "note": note})
                    raise waiting.over(absent, note)
                waiting.report(absent, note)
            gathering.serve(waiting.soon())
        infos = [own(mine["info"]), *(own(gathering.came[i].info) for i in range(1, len(waiting.names)))]
        gathering.shut()  # The port must be free for JAX's service before the others try to connect with it.
        gathering.tell({"go": infos, "proof": waiting.proof(infos)})
        _accompany(waiting, gathering, infos)
    return infos


def _absent(waiting: _Waiting, gathering: RendezvousServer) -> tuple[list[int], str]:
    """Returns the processes that are missing or silent, and a note on the silent ones."""
    silent = gathering.silent()
    names = [f"{waiting.names[process]} (for {age:.0f} s)" for process, age in silent.items()]
    return sorted({*gathering.missing(), *silent}), _of_the_silent(names)


def _accompany(waiting: _Waiting, gathering: RendezvousServer, infos: Infos) -> None:
    """Does this process's work, and watches meanwhile whether the others are still there."""
    work, latest = waiting.begun(infos), time.monotonic() + waiting.patience.start
    while not work.is_over():
        now = time.monotonic()
        if now >= waiting.soon():
            (absent, note), gone = _absent(waiting, gathering), gathering.missing()
            note += (f"; hung up: {', '.join(waiting.names[i] for i in gone)}" if gone else "") + _WHILE_CONNECTING
            if now >= waiting.deadline and (absent or now >= latest):
                gathering.tell({"over": absent, "note": note})
                time.sleep(waiting.patience.end)  # JAX aborts the others when its service, here, is gone.
                raise waiting.over(absent, note)
            waiting.report(absent, note)
        gathering.serve(now + _SECONDS_BETWEEN_GLANCES)
    gathering.tell({"through": True})
    work.check()


def _of_the_silent(names: Sequence[str]) -> str:
    return f"; came, but does not answer any more (stopped?): {', '.join(names)}" if names else ""


def _join(waiting: _Waiting, greeting: Greeting) -> list[dict[str, object]]:
    where = parse_address(waiting.address, "coordinator address")
    missing, note = [0], ""
    while time.monotonic() < waiting.deadline:
        try:
            with socket.create_connection((where.host, where.port), timeout=_remaining(waiting.soon())) as connection:
                client = _RendezvousClient(waiting, connection)
                infos = client.run(greeting)
                work = client.accompany(infos) if infos is not None else None
            if infos is not None and work is not None:
                break
            missing, note = client.missing, client.note
        except ClusterTimeoutError:  # It is an OSError too.
            raise
        except OSError as error:  # No name service, no route, or nobody is there yet.
            missing, note = [0], f" ({error})"
        waiting.report(missing, note)
        time.sleep(min(_SECONDS_BETWEEN_TRIES, _remaining(waiting.deadline)))
    else:
        raise waiting.over(missing, note)
    work.check()
    return infos


class _RendezvousClient:
    """A connection with process 0, or with another program that listens at its address."""

    def __init__(self, waiting: _Waiting, connection: socket.socket):
        self._waiting, self._connection = waiting, connection
        self._heard = bytearray()
        self._heard_at: float | None = None
        self._alone = False
        self.missing: list[int] = [0]  # those that are known to be missing
        self.unnamed = 0  # how many more are missing
        self.note = ""  # what else is known of them

    def run(self, greeting: Greeting) -> list[dict[str, object]] | None:
        """Returns the information of all processes; None if the time is up."""
        self._say(greeting)
        begun = time.monotonic()
        while time.monotonic() < self._end():
            line = self._line(min(self._end(), time.monotonic() + self._waiting.patience.again))
            message = None if line is None else checked(line, len(self._waiting.names))
            if message is not None and "go" in message:
                if not hmac.compare_digest(message["proof"].encode(), self._waiting.proof(message["go"]).encode()):
                    raise ConnectionError(f"{NOT_OURS}: it does not know the job's token (REPLICAX_TOKEN)")
                return message["go"]
            if message is not None:
                self._hear(message)
            self._notice_silence(begun)
            self._waiting.report(self.missing, self.note, self.unnamed)
        return None

    def accompany(self, infos: Infos) -> Work:
        """Does this process's work, and answers process 0 meanwhile; returns the work when it is over."""
        waiting, begun = self._waiting, time.monotonic()
        work, latest, lost = waiting.begun(infos), begun + waiting.patience.start + waiting.patience.end, ""
        self.missing, self._heard_at = [], begun
        while not work.is_over(_SECONDS_BETWEEN_GLANCES if lost or self._alone else 0.0):
            try:
                line = None if lost or self._alone else self._line(time.monotonic() + _SECONDS_BETWEEN_GLANCES)
                if line is not None:
                    self._hear(checked(line, len(waiting.names)))
            except ClusterTimeoutError:  # It is an OSError too.
                raise
            except OSError as error:
                lost = f"; its connection ended ({error})"
            if not lost and not self._alone:
                self._notice_silence(begun)
            now, end = time.monotonic(), waiting.deadline + waiting.patience.end
            if now >= end and (lost or self.missing == [0] or now >= latest):
                raise waiting.over([0] if lost else self.missing, (lost or self.note) + _WHILE_CONNECTING)
            waiting.report([0] if lost else self.missing, (lost or self.note) + _WHILE_CONNECTING)
        with contextlib.suppress(OSError):
            self._say({"through": True})
        return work

    def _end(self) -> float:
        """Returns when to give up: after process 0, if it is there, since that knows which processes are missing."""
        return self._waiting.deadline + (self._waiting.patience.end if self.missing != [0] else 0.0)

    def _hear(self, message: Answer) -> None:
        names = self._waiting.names
        if "no" in message:
            raise ClusterError(
                "process", names[self._waiting.process], f"does not fit the others: {message['no']}",
                "Start every process with the same cluster, a task of its own and the same versions.",
            )  # fmt: skip
        if "over" in message:
            raise self._waiting.over(message["over"], message["note"])
        self._heard_at = time.monotonic()
        if "through" in message:  # Process 0 has done its own work.
            self._alone, self.missing, self.unnamed, self.note = True, [], 0, ""
            return
        self.missing = sorted({*message["missing"], *message["silent"]})
        self.unnamed = message["absent"] - len(self.missing)
        self.note = _of_the_silent([names[i] for i in message["silent"]])
        self._say({"here": message["ask"]})

    def _notice_silence(self, begun: float) -> None:
        silence = time.monotonic() - (self._heard_at or begun)
        if silence > self._waiting.patience.silence:
            last = "has not answered yet" if self._heard_at is None else "was here, and has been silent since"
            self.missing, self.unnamed = [0], 0
            self.note = (
                f"; its port is open, but it {last}, for {silence:.0f} s: it is stopped, or does not belong to this job"
            )

    def _say(self, message: Mapping[str, object]) -> None:
        self._connection.settimeout(self._waiting.patience.silence)
        self._connection.sendall(encoded(message))

    def _line(self, until: float) -> bytes | None:
        """Returns the next line; None if it has not come at `until`."""
        while (end := self._heard.find(b"\n") + 1) == 0:
            if len(self._heard) > LONGEST_ANSWER:
                raise ConnectionError(f"{NOT_OURS}: it sends a line that is too long")
            self._connection.settimeout(_remaining(until))
            try:
                received = self._connection.recv(2**16)
            except TimeoutError:
                return None
            if not received:
                raise ConnectionError("the connection was closed")
            self._heard += received
        line = bytes(self._heard[:end])
        del self._heard[:end]
        return line


def _remaining(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.001)  # 0 would make the socket non-blocking.


# Work that cannot be interrupted. It runs in a thread, so that the caller can stop waiting for it.


class Work:
    """A call in a thread that does not prevent the process from ending."""

    def __init__(self, call: Callable[[], None]):
        self._call, self._over = call, threading.Event()
        self._error: BaseException | None = None
        StoppedAtEnd("replicax-connecting", self._run).start()

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as error:
            self._error = error
        finally:
            self._over.set()

    def is_over(self, wait_s: float = 0.0) -> bool:
        """Returns whether it is over, after waiting for at most `wait_s` seconds."""
        return self._over.wait(wait_s)

    def check(self) -> None:
        """Raises the error of the call, if it raised one."""
        if self._error is not None:
            raise self._error


# The messages of process 0 at the rendezvous, checked, since another program may listen at its address.


LONGEST_ANSWER = 2**26  # The information of thousands of processes.
NOT_OURS = "the program that listens there is not process 0 of this job"


class Answer(TypedDict, total=False):
    """A message of process 0. It has one of the keys `ask`, `go`, `no`, `over` and `through`."""

    ask: int  # the number of a question, which the receiver repeats in its answer to show that it is there
    missing: list[int]  # with `ask`: the processes that have not come
    silent: list[int]  # with `ask`: those that came and do not answer any more. Of both only the first are named.
    absent: int  # with `ask`: how many are missing or silent in all
    go: list[dict[str, object]]  # all are there: the information of each process
    proof: str  # with `go`: that it comes from a process that knows the token
    no: str  # why the receiver does not belong to the job
    over: list[int]  # the time is up: the processes that are missing
    note: str  # with `over`: what else is known of them
    through: bool  # process 0 is connected and needs the others no more


def checked(line: bytes, processes: int) -> Answer:
    """Returns a message of process 0; raises a `ConnectionError` for anything else."""
    try:
        message = decoded(line, LONGEST_ANSWER)
    except ValueError as error:
        raise ConnectionError(f"{NOT_OURS}: {error}") from None
    kind = next((key for key in ("no", "go", "over", "through", "ask") if key in message), None)
    listed = [message.get(key) for key in ("missing", "silent")]
    fits = {
        None: lambda: False,
        "through": lambda: message["through"] is True,
        "no": lambda: isinstance(message["no"], str),
        "go": lambda: _are_infos(message["go"], processes) and isinstance(message.get("proof"), str),
        "over": lambda: _are_numbers(message["over"], processes) and isinstance(message.get("note"), str),
        "ask": lambda: (
            is_number(message["ask"], 1, 2**63)
            and is_number(message.get("absent"), 0, processes)
            and all(_are_numbers(each, processes) for each in listed)
        ),
    }
    if not fits[kind]():
        raise ConnectionError(f"{NOT_OURS}: it sends {line!r:.100}")
    return cast(Answer, message)


def _are_infos(value: object, count: int) -> bool:
    return isinstance(value, list) and len(value) == count and all(isinstance(info, dict) for info in value)


def _are_numbers(values: object, processes: int) -> bool:
    return isinstance(values, list) and all(is_number(value, 0, processes) for value in values)
