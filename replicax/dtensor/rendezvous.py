"""Finding each other: the clients of a program wait until all of them are there, before JAX connects them.

JAX's own wait aborts the process when its time is up, without saying who was missing. So client 0 first listens at the
address where JAX's coordination service will be; the others tell it their numbers, it tells them all to go on.
"""

from __future__ import annotations

import contextlib
import socket
import time

from replicax.errors import ArgumentError, ClientsTimeoutError

_GREETING = "replicax-dtensor"
_LONGEST_LINE = 500
_SECONDS_BETWEEN_TRIES = 0.1
_SECONDS_TO_GREET = 5.0


def meet(address: str, client: int, num_clients: int, timeout_s: float) -> None:
    """Returns when all clients have called it.

    Args:
        address: `"host:port"` of client 0, which listens there until all have come.
        client: Number of this client.
        num_clients: How many there are.
        timeout_s: How long to wait, in seconds.

    Raises:
        ClientsTimeoutError: Not all came in time.
        ArgumentError: Client 0 cannot listen at that port, or this client does not fit the others: another process has
            its number, or client 0 was told of another number of clients.
    """
    deadline = time.monotonic() + timeout_s
    if client == 0:
        _gather(address, num_clients, timeout_s, deadline)
    else:
        _join(address, client, num_clients, timeout_s, deadline)


def split_address(address: str) -> tuple[str, int]:
    """Returns the host and port of `"host:port"`; an IPv6 address as host stands in brackets."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _gather(address: str, num_clients: int, timeout_s: float, deadline: float) -> None:
    waiting: dict[int, socket.socket] = {}
    with contextlib.ExitStack() as connections:
        with _listen(address) as listener:
            while missing := _missing(waiting, num_clients):
                listener.settimeout(_remaining(deadline))
                try:
                    connection = connections.enter_context(listener.accept()[0])
                except TimeoutError:
                    absent = f"client(s) {', '.join(map(str, missing))} to come to {address}"
                    raise ClientsTimeoutError(absent, timeout_s, 0, missing) from None
                _greet(connection, waiting, num_clients, deadline)
        # The port must be free for JAX's service before the others try to connect to that.
        for connection in waiting.values():
            _say(connection, "go")


def _missing(waiting: dict[int, socket.socket], num_clients: int) -> list[int]:
    """Returns the numbers of the clients that have not come; forgets those that have gone again."""
    for client in [client for client, connection in waiting.items() if not _is_open(connection)]:
        del waiting[client]
    return [client for client in range(1, num_clients) if client not in waiting]


def _greet(connection: socket.socket, waiting: dict[int, socket.socket], num_clients: int, deadline: float) -> None:
    words = _hear(connection, min(deadline, time.monotonic() + _SECONDS_TO_GREET)).split()
    if len(words) != 3 or words[0] != _GREETING or not (words[1] + words[2]).isdigit():
        return  # Not one of us.
    theirs, client = int(words[1]), int(words[2])
    if theirs != num_clients:
        _say(connection, f"no DTENSOR_JOBS names {theirs} clients here, but {num_clients} for client 0")
    elif client in waiting and _is_open(waiting[client]):
        _say(connection, f"no another process is client {client} already")
    else:
        waiting[client] = connection


def _join(address: str, client: int, num_clients: int, timeout_s: float, deadline: float) -> None:
    missing: tuple[int, ...] = ()
    waited_for = f"client 0 at {address}"
    while time.monotonic() < deadline:
        try:
            with socket.create_connection(split_address(address), timeout=_remaining(deadline)) as connection:
                _say(connection, f"{_GREETING} {num_clients} {client}")
                missing, waited_for = (), f"the other clients; client 0 at {address} is waiting for them too"
                answer = _hear(connection, deadline)
        except OSError as error:  # No name service, no route, nobody there yet.
            missing, waited_for, answer = (0,), f"client 0 at {address} ({error})", ""
        if answer == "go":
            return
        if answer.startswith("no "):
            raise ArgumentError(
                f"Client {client} does not fit the others: {answer[3:]}. Give every client the same DTENSOR_JOBS and a "
                "DTENSOR_CLIENT_ID of its own."
            )
        time.sleep(min(_SECONDS_BETWEEN_TRIES, _remaining(deadline)))
    raise ClientsTimeoutError(waited_for, timeout_s, client, missing)


def _listen(address: str) -> socket.socket:
    port = split_address(address)[1]
    try:
        if socket.has_dualstack_ipv6():  # On all interfaces, as JAX's service will.
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        return socket.create_server(("", port))
    except OSError as error:
        raise ArgumentError(
            f"Client 0 cannot listen at port {port} of the first address of DTENSOR_JOBS, {address!r}: {error}. Choose "
            "a free port, and see that only one process is client 0."
        ) from error


def _say(connection: socket.socket, line: str) -> None:
    with contextlib.suppress(OSError):  # It has gone again.
        connection.settimeout(_SECONDS_TO_GREET)
        connection.sendall(f"{line}\n".encode())


def _hear(connection: socket.socket, deadline: float) -> str:
    """Returns the next line, without its end; "" if none came in time or the other one hung up."""
    heard = b""
    with contextlib.suppress(OSError):
        while not heard.endswith(b"\n") and len(heard) < _LONGEST_LINE:
            connection.settimeout(_remaining(deadline))
            received = connection.recv(1)
            if not received:
                return ""
            heard += received
    return heard.decode(errors="replace").strip() if heard.endswith(b"\n") else ""


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
