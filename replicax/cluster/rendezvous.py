"""Finding each other: the processes of a job wait until all of them are there, before JAX connects them.

JAX's own wait aborts the process when its time is up, without saying who was missing. So process 0 first listens at the
address where JAX's coordination service will be. The others tell it who they are, in one line of JSON each, and it
tells all of them about all. After that the port is JAX's.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from replicax.cluster.addresses import parse_address
from replicax.errors import ClusterError, ClusterTimeoutError

_log = logging.getLogger(__name__)
_LONGEST_LINE = 2**20
_SECONDS_BETWEEN_TRIES = 0.1
_SECONDS_TO_GREET = 5.0
_FIRST_REPORT_AFTER, _SECONDS_BETWEEN_REPORTS = 3.0, 10.0


def meet(
    address: str, process: int, names: Sequence[str], info: Mapping[str, Any], timeout_s: float, token: str = ""
) -> list[dict[str, Any]]:
    """Returns when all processes have called it.

    While it waits it logs, as a warning, who is missing.

    Args:
        address: `"host:port"` of process 0, which listens there until all have come.
        process: Number of this process.
        names: For each process how to call it in messages, such as `"worker:2 at 10.0.0.3:2222"`.
        info: What the others should know of this process, as JSON can hold it.
        timeout_s: How long to wait, in seconds.
        token: A secret of the job; who does not know it is not let in.

    Returns:
        The `info` of each process, in the order of `names`.

    Raises:
        ClusterTimeoutError: Not all came in time.
        ClusterError: Process 0 cannot listen at its port, or this process does not fit the others.
    """
    waiting = _Waiting(address, process, list(names), timeout_s)
    greeting = {"process": process, "processes": len(names), "token": token, "info": dict(info)}
    if process == 0:
        return _gather(waiting, greeting)
    return _join(waiting, greeting)


class _Waiting:
    """What a process waits for, until when, and the reports on it."""

    def __init__(self, address: str, process: int, names: list[str], timeout_s: float):
        self.address, self.process, self.names, self.timeout_s = address, process, names, timeout_s
        self._start = time.monotonic()
        self._next_report = self._start + _FIRST_REPORT_AFTER

    @property
    def deadline(self) -> float:
        return self._start + self.timeout_s

    def soon(self) -> float:
        """Returns when to stop waiting on a socket: at the next report or the deadline."""
        return min(self.deadline, self._next_report)

    def report(self, missing: Sequence[int], note: str = "") -> None:
        """Logs who is missing, now and then; without anybody known to be missing, the note alone."""
        now = time.monotonic()
        if now < self._next_report:
            return
        self._next_report = now + _SECONDS_BETWEEN_REPORTS
        if not missing:
            _log.warning("%s has waited %.0f s for others%s", self.names[self.process], now - self._start, note)
            return
        here, all_ = len(self.names) - len(missing), len(self.names)
        absent = ", ".join(self.names[i] for i in missing)
        _log.warning("%d of %d processes here after %.0f s; missing %s%s", here, all_, now - self._start, absent, note)

    def over(self, missing: Sequence[int], note: str = "") -> ClusterTimeoutError:
        """Returns the error for a wait that has ended in vain."""
        return ClusterTimeoutError(
            self.names[self.process], self.timeout_s, [self.names[i] for i in missing], self.address, note
        )


def _gather(waiting: _Waiting, mine: dict[str, Any]) -> list[dict[str, Any]]:
    came: dict[int, tuple[socket.socket, dict[str, Any]]] = {}
    with contextlib.ExitStack() as connections:
        with _listening(waiting.address) as listener:
            while missing := _missing(came, len(waiting.names)):
                listener.settimeout(_remaining(waiting.soon()))
                try:
                    connection = connections.enter_context(listener.accept()[0])
                except TimeoutError:
                    if time.monotonic() >= waiting.deadline:
                        raise waiting.over(missing) from None
                    waiting.report(missing)
                    continue
                _greet(connection, came, mine, waiting.deadline)
        infos = [mine["info"], *(came[i][1] for i in range(1, len(waiting.names)))]
        # The port must be free for JAX's service before the others try to connect to that.
        for connection, _ in came.values():
            _say(connection, {"go": infos})
    return infos


def _missing(came: dict[int, tuple[socket.socket, Any]], processes: int) -> list[int]:
    """Returns the numbers of the processes that have not come; forgets those that have gone again."""
    for process in [process for process, (connection, _) in came.items() if not _is_open(connection)]:
        del came[process]
    return [process for process in range(1, processes) if process not in came]


def _greet(connection: socket.socket, came: dict[int, Any], mine: dict[str, Any], deadline: float) -> None:
    theirs = _hear(connection, min(deadline, time.monotonic() + _SECONDS_TO_GREET))
    if not isinstance(theirs, dict) or not {"process", "processes", "token", "info"} <= theirs.keys():
        return  # Not one of us.
    process, info = theirs["process"], theirs["info"]
    if not hmac.compare_digest(str(theirs["token"]).encode(), str(mine["token"]).encode()):
        _say(connection, {"no": "it does not know the job's token (REPLICAX_TOKEN)"})
    elif theirs["processes"] != mine["processes"]:
        _say(connection, {"no": f"it was told of {theirs['processes']} processes, process 0 of {mine['processes']}"})
    elif not isinstance(process, int) or not 0 < process < mine["processes"]:
        _say(connection, {"no": f"there is no process {process!r}"})
    elif process in came and _is_open(came[process][0]):
        _say(connection, {"no": f"another process is number {process} already"})
    elif different := [key for key in mine["info"] if key.startswith("same ") and info.get(key) != mine["info"][key]]:
        key = different[0]
        _say(connection, {"no": f"its {key[5:]} is {info.get(key)!r}, and that of process 0 {mine['info'][key]!r}"})
    else:
        came[process] = connection, info


def _join(waiting: _Waiting, greeting: dict[str, Any]) -> list[dict[str, Any]]:
    host = parse_address(waiting.address, "coordinator address")
    missing, note = [0], ""
    while time.monotonic() < waiting.deadline:
        answer = None
        try:
            with socket.create_connection((host.host, host.port), timeout=_remaining(waiting.soon())) as connection:
                _say(connection, greeting)
                missing, note = [], "; process 0 is here and waits for them"
                heard = bytearray()
                while answer is None and time.monotonic() < waiting.deadline and _is_open(connection):
                    answer = _hear(connection, waiting.soon(), heard)
                    waiting.report(missing, note)
        except OSError as error:  # No name service, no route, nobody there yet.
            missing, note = [0], f" ({error})"
        if isinstance(answer, dict) and "go" in answer:
            return answer["go"]
        if isinstance(answer, dict) and "no" in answer:
            raise ClusterError(
                "process", waiting.names[waiting.process], f"does not fit the others: {answer['no']}",
                "Start every process with the same cluster, a task of its own and the same versions.",
            )  # fmt: skip
        waiting.report(missing, note)
        time.sleep(min(_SECONDS_BETWEEN_TRIES, _remaining(waiting.deadline)))
    raise waiting.over(missing, note)


@contextlib.contextmanager
def _listening(address: str) -> Iterator[socket.socket]:
    """Listens at an address: on loopback only if that is what it says, otherwise on all interfaces, as JAX will."""
    where = parse_address(address, "coordinator address")
    try:
        if where.is_loopback():
            listener = socket.create_server((where.host, where.port), family=_family(where.host))
        elif socket.has_dualstack_ipv6():
            listener = socket.create_server(("", where.port), family=socket.AF_INET6, dualstack_ipv6=True)
        else:
            listener = socket.create_server(("", where.port))
    except OSError as error:
        raise ClusterError(
            "address of process 0", address, f"cannot be listened at: {error}",
            "Choose a free port of this machine, and see that only one process is the first.",
        ) from error  # fmt: skip
    with listener:
        yield listener


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _say(connection: socket.socket, message: Mapping[str, Any]) -> None:
    with contextlib.suppress(OSError):  # It has gone again.
        connection.settimeout(_SECONDS_TO_GREET)
        connection.sendall(json.dumps(message).encode() + b"\n")


def _hear(connection: socket.socket, deadline: float, heard: bytearray | None = None) -> Any:
    """Returns the message in the next line; None if none came in time, the other one hung up, or it is no JSON.

    What came of it so far is kept in `heard`, for another try.
    """
    heard = bytearray() if heard is None else heard
    try:
        while not heard.endswith(b"\n") and len(heard) < _LONGEST_LINE:
            connection.settimeout(_remaining(deadline))
            received = connection.recv(4096)
            if not received:
                return None
            heard += received
        return json.loads(heard)
    except (OSError, ValueError):
        return None


def _is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def _remaining(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.001)  # 0 would mean: do not wait at all, not even for what is there.
