"""The server of the rendezvous: process 0 runs it until all processes of a job are connected.

It serves all connections at the same time. Anybody may connect: other programs, scanners, processes of another job. A
connection that does not send a greeting of this job in time is closed, and delays no other.
"""

from __future__ import annotations

import contextlib
import functools
import hmac
import selectors
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypedDict, cast

from replicax.cluster.addresses import parse_address
from replicax.cluster.lines import decoded, encoded, is_number
from replicax.cluster.patience import Patience
from replicax.cluster.strangers import Strangers
from replicax.errors import ClusterError

LONGEST_GREETING = 2**16
_BACKLOG = 1024
_SECONDS_TO_RECOVER = 0.05  # before the next `accept`
MOST_NAMED = 100  # processes that a question names: thousands ask who is missing
_ACCEPTED_AT_ONCE = 256
_SAME = "same "  # begins what of the information must be alike in all processes


class Greeting(TypedDict):
    """The first message of a process."""

    process: int
    processes: int  # how many it expects
    token: str  # shows that it knows the job's secret
    info: dict[str, object]  # for the others


class Arrival:
    """A connection. It is a stranger's at first, and a process's after its greeting."""

    def __init__(self, connection: socket.socket):
        self.connection = connection
        self.heard_at = time.monotonic()  # when its last message came
        self.process: int | None = None  # None for a stranger
        self.info: dict[str, object] = {}  # in its greeting
        self._heard, self._unsent = bytearray(), b""

    def lines(self) -> Iterator[bytes]:
        """Yields the lines that have come."""
        with contextlib.suppress(BlockingIOError):
            received = self.connection.recv(LONGEST_GREETING)
            if not received:
                raise ConnectionResetError("the connection is closed")
            self._heard += received
        while (end := self._heard.find(b"\n") + 1) > 0:
            line = bytes(self._heard[:end])
            del self._heard[:end]
            yield line
        if len(self._heard) > LONGEST_GREETING:
            raise ValueError("a line is too long")

    def ask(self, message: bytes) -> None:
        """Sends a message, unless the previous one is still being sent, since a stopped process reads nothing."""
        if not self._unsent:
            self._unsent = message
        with contextlib.suppress(BlockingIOError):
            self._unsent = self._unsent[self.connection.send(self._unsent) :]

    def say(self, message: bytes, seconds: float) -> None:
        """Sends a message that must arrive, and waits so long if necessary."""
        with contextlib.suppress(OSError):  # It is closed.
            self.connection.settimeout(seconds)
            self.connection.sendall(self._unsent + message)
            self._unsent = b""
            self.connection.setblocking(False)


class RendezvousServer:
    """The connections that process 0 serves."""

    def __init__(self, listener: socket.socket, mine: Greeting, patience: Patience):
        self._listener, self._mine, self._patience = listener, mine, patience
        self._selector = selectors.DefaultSelector()
        self._strangers = Strangers[Arrival]()
        self.came: dict[int, Arrival] = {}
        self._through: set[int] = set()  # processes that need process 0 no more
        self._missing = set(range(1, mine["processes"]))
        self._asked, self._next_question = 0, 0.0
        self._asked_all: int | None = None  # the first question that reached all processes
        self._unanswered: set[int] = set()  # processes that have answered none of the questions since then
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, self._accept)

    def __enter__(self) -> RendezvousServer:
        return self

    def __exit__(self, *exception: object) -> None:
        self._selector.close()
        for arrival in [*self._strangers.all(), *self.came.values()]:
            arrival.connection.close()

    def missing(self) -> list[int]:
        """Returns the indices of the processes that have not come, or left before they were through."""
        return sorted(self._missing)

    def silent(self) -> dict[int, float]:
        """Returns for each process that came and is silent now, how many seconds it has been so."""
        here = [(process, arrival) for process, arrival in sorted(self.came.items()) if process not in self._through]
        ages = {process: time.monotonic() - arrival.heard_at for process, arrival in here}
        return {process: age for process, age in ages.items() if age > self._patience.silence}

    def complete(self) -> bool:
        """Returns whether all are here and have answered a question that came after the last arrival."""
        return self._asked_all is not None and not self._unanswered

    def serve(self, until: float) -> None:
        """Serves the connections until something happens, at most until `until` (`time.monotonic`)."""
        self._ask()
        until = min(until, self._next_question, self._strangers.due())
        for key, _ in self._selector.select(max(until - time.monotonic(), 0.001)):
            key.data()
        self._drop_all(self._strangers.overdue())

    def shut(self) -> None:
        """Accepts no more connections and frees the port. Processes that have come stay connected."""
        self._selector.unregister(self._listener)
        self._listener.close()
        self._drop_all(self._strangers.all())

    def tell(self, message: Mapping[str, object]) -> None:
        """Sends a message to all processes that have come."""
        line = encoded(message)
        for arrival in self.came.values():
            arrival.say(line, self._patience.silence)

    def _ask(self) -> None:
        """Asks the processes that have come whether they are still there, and tells them which are not."""
        now = time.monotonic()
        if self._missing:
            self._asked_all = None
        if now < self._next_question and (self._missing or self._asked_all is not None):
            return
        self._asked, self._next_question = self._asked + 1, now + self._patience.again
        if not self._missing and self._asked_all is None:
            self._asked_all, self._unanswered = self._asked, {*self.came}
        missing, silent = self.missing(), [*self.silent()]
        named = {"missing": missing[:MOST_NAMED], "silent": silent[:MOST_NAMED]}
        question = encoded({"ask": self._asked, **named, "absent": len(missing) + len(silent)})
        for arrival in list(self.came.values()):
            try:
                arrival.ask(question)
            except OSError:
                self._drop(arrival)

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):  # Then the other connections have their turn.
            try:
                connection = self._listener.accept()[0]
            except BlockingIOError:
                return
            except ConnectionError:  # It was closed again.
                continue
            except OSError:  # This process has too many files open.
                time.sleep(_SECONDS_TO_RECOVER)
                return self._drop_all(self._strangers.oldest())
            connection.setblocking(False)
            arrival = Arrival(connection)
            self._strangers.add(arrival)
            self._selector.register(connection, selectors.EVENT_READ, functools.partial(self._read, arrival))
            self._drop_all(self._strangers.overdue())

    def _read(self, arrival: Arrival) -> None:
        try:
            for line in arrival.lines():
                message = decoded(line, LONGEST_GREETING)
                if arrival.process is None:
                    self._greet(arrival, message)
                else:
                    self._hear(arrival, message)
        except (OSError, ValueError):  # It was closed, or does not belong to the job.
            self._drop(arrival)

    def _greet(self, arrival: Arrival, message: Mapping[str, object]) -> None:
        refusal = refused(message, self._mine, self._is_taken)
        if refusal is not None:
            arrival.say(encoded({"no": refusal}), self._patience.silence)
            raise ConnectionRefusedError(refusal)
        greeting = cast(Greeting, message)  # `refused` has checked it.
        arrival.process, arrival.info, arrival.heard_at = greeting["process"], greeting["info"], time.monotonic()
        self._strangers.remove(arrival)
        self.came[greeting["process"]] = arrival
        self._missing.discard(greeting["process"])

    def _hear(self, arrival: Arrival, answer: Mapping[str, object]) -> None:
        if answer.get("through") is True:
            if arrival.process is not None and self.came.get(arrival.process) is arrival:
                self._through.add(arrival.process)
            return
        answered = answer.get("here")
        if not is_number(answered, 1, self._asked + 1):
            raise ValueError("an answer to no question")
        arrival.heard_at = time.monotonic()
        if self._asked_all is not None and answered >= self._asked_all and arrival.process is not None:
            self._unanswered.discard(arrival.process)

    def _is_taken(self, process: int) -> bool:
        """Returns whether a process has come already and has not left since."""
        if process in self.came:
            self._read(self.came[process])
        return process in self.came

    def _drop(self, arrival: Arrival) -> None:
        if arrival.connection.fileno() < 0:
            return
        self._selector.unregister(arrival.connection)
        arrival.connection.close()
        self._strangers.remove(arrival)
        if arrival.process is not None and self.came.get(arrival.process) is arrival:
            del self.came[arrival.process]
            self._asked_all = None
            if arrival.process not in self._through:
                self._missing.add(arrival.process)

    def _drop_all(self, arrivals: Sequence[Arrival]) -> None:
        for arrival in arrivals:
            self._drop(arrival)


@contextlib.contextmanager
def listening(address: str) -> Iterator[socket.socket]:
    """Listens at an address: a loopback address alone, or all interfaces for any other, as JAX will."""
    where = parse_address(address, "coordinator address")
    try:
        if where.is_loopback():
            family = socket.AF_INET6 if ":" in where.host else socket.AF_INET
            listener = socket.create_server((where.host, where.port), family=family, backlog=_BACKLOG)
        elif socket.has_dualstack_ipv6():
            place = ("", where.port)
            listener = socket.create_server(place, family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG)
        else:
            listener = socket.create_server(("", where.port), backlog=_BACKLOG)
    except OSError as error:
        raise ClusterError(
            "address of process 0", address, f"cannot be listened at: {error}",
            "Choose a free port of this machine, and make sure that only one process is the first.",
        ) from error  # fmt: skip
    with listener:
        yield listener


def refused(greeting: Mapping[str, object], mine: Greeting, is_taken: Callable[[int], bool]) -> str | None:
    """Returns why a greeting does not belong to this job, None if it does; a `ValueError` needs no answer."""
    process, processes, token, info = (greeting.get(key) for key in ("process", "processes", "token", "info"))
    if not isinstance(token, str) or greeting.keys() != mine.keys():
        raise ValueError("not a greeting")
    if not hmac.compare_digest(token.encode(), str(mine["token"]).encode()):
        return "it does not know the job's token (REPLICAX_TOKEN)"
    if not is_number(processes, mine["processes"], mine["processes"] + 1):
        return f"it expects {processes!r:.100} processes, process 0 expects {mine['processes']}"
    if not is_number(process, 1, mine["processes"]):
        return f"there is no process {process!r:.100}"
    if not isinstance(info, dict):
        return f"its information is not a JSON object: {info!r:.100}"
    if is_taken(process):
        return f"another process has the index {process} already"
    return difference(info, mine["info"])


def own(info: Mapping[str, object]) -> dict[str, object]:
    """Returns what of a process's information is its own: the list of all goes to all, so it has nothing else."""
    return {key: value for key, value in info.items() if not key.startswith(_SAME)}


def difference(theirs: Mapping[str, object], mine: Mapping[str, object]) -> str | None:
    """Returns which information that must be the same differs between a process and process 0; None if none does."""
    keys: Sequence[str] = [key for key in mine if key.startswith(_SAME) and theirs.get(key) != mine[key]]
    if not keys:
        return None
    what, differing = keys[0].removeprefix(_SAME), theirs.get(keys[0])
    return f"its {what} is {differing!r:.200}, and that of process 0 {mine[keys[0]]!r:.200}"
