"""The client of another worker's health server."""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

TOKEN_HEADER = "X-Replicax-Token"
_LARGEST_ANSWER = 2**23
_MOST_THREADS = 256
_T = TypeVar("_T")


class Client:
    """Asks one worker, from any thread. Connections stay open, since most questions come again a second later."""

    def __init__(self, host: str, port: int, token: str):
        # The token shows that this process is of the job; it is not the job's secret, since another may listen there.
        self._host, self._port, self._token = host, port, token
        # Each open question has a connection of its own, so a slow answer to one delays no other.
        self._idle: list[http.client.HTTPConnection] = []

    def status(self, timeout: float) -> object:
        """Returns its status as JSON. An `OSError`: no answer came in time. A `ValueError`: the answer is not JSON."""
        return _read(self._ask("GET", "/status", timeout))

    def stacks(self, timeout: float) -> str:
        """Returns the Python stacks of its threads; raises the errors of `status`."""
        return self._ask("GET", "/stacks", timeout)

    def program(self, index: int, timeout: float) -> object:
        """Returns the program that it compared at `index`; None if it has not come to it. Raises as `status` does."""
        return _read(self._ask("GET", f"/programs/{index}", timeout))

    def call(self, number: int, timeout: float) -> object:
        """Returns its `number`-th call (`runtime.call_order`); None if it does not know it. Raises as `status` does."""
        return _read(self._ask("GET", f"/calls/{number}", timeout))

    def post(self, path: str, document: Mapping[str, object], timeout: float) -> None:
        """Sends it a document; raises the errors of `status`."""
        # The message of a script's error may not be valid Unicode; the rest of it arrives all the same.
        self._ask("POST", path, timeout, json.dumps(document, ensure_ascii=False).encode(errors="replace"))

    def close(self) -> None:
        """Closes the idle connections."""
        while (connection := self._take_idle()) is not None:
            connection.close()

    def _take_idle(self) -> http.client.HTTPConnection | None:
        with contextlib.suppress(IndexError):
            return self._idle.pop()
        return None

    def _ask(self, method: str, path: str, timeout: float, body: bytes | None = None) -> str:
        connection = self._take_idle()
        if connection is not None:
            # The connection may have broken while it was not used: ask once more, on a new one.
            with contextlib.suppress(ConnectionError, http.client.HTTPException):
                return self._asked(connection, method, path, timeout, body)
            self.close()  # The other idle connections are older.
        try:
            return self._asked(http.client.HTTPConnection(self._host, self._port), method, path, timeout, body)
        except http.client.HTTPException as error:
            if isinstance(error, ConnectionError):
                raise
            raise ConnectionError(
                f"{self._host}:{self._port}: {error!r:.200}"
            ) from error  # Another program listens there.

    def _asked(
        self, connection: http.client.HTTPConnection, method: str, path: str, timeout: float, body: bytes | None
    ) -> str:
        connection.timeout = timeout
        if connection.sock is not None:
            connection.sock.settimeout(timeout)
        try:
            connection.request(method, path, body, {TOKEN_HEADER: self._token})
            response = connection.getresponse()
            text = response.read(_LARGEST_ANSWER).decode(errors="replace")
            if response.status != http.HTTPStatus.OK:
                raise OSError(f"{self._host}:{self._port} answered {response.status} to {path}")
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)
        return text


def _read(text: str) -> object:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("the answer is nested too deeply") from None


def in_parallel(calls: Sequence[Callable[[], _T]], timeout: float) -> list[_T | None]:
    """Returns the results of calls in threads; None for one that fails or takes longer than `timeout`."""
    results: list[_T | None] = [None] * len(calls)
    waiting = iter(range(len(calls)))
    lock = threading.Lock()

    def run() -> None:
        while True:
            with lock:
                i = next(waiting, None)
            if i is None:
                return
            with contextlib.suppress(Exception):
                results[i] = calls[i]()

    threads = [threading.Thread(target=run, daemon=True) for _ in range(min(_MOST_THREADS, len(calls)))]
    for thread in threads:
        thread.start()
    # Many calls share the threads: `timeout` is for each turn of them.
    deadline = time.monotonic() + timeout * max(1, math.ceil(len(calls) / _MOST_THREADS))
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return results
