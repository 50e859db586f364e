"""Asking another worker's health server."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

TOKEN_HEADER = "X-Replicax-Token"
_LARGEST_ANSWER = 2**23


class Client:
    """Asks one worker. The connection is kept open, since most questions come again a second later.

    Args:
        host: Where its server is.
        port: Where its server is.
        token: The job's secret.
    """

    def __init__(self, host: str, port: int, token: str):
        self._host, self._port, self._token = host, port, token
        self._connection: http.client.HTTPConnection | None = None
        self._lock = threading.Lock()

    def status(self, timeout: float) -> Any:
        """Returns what it says of itself; see `replicax.health.status`.

        Raises:
            ConnectionRefusedError: Nobody listens there.
            OSError: There was no answer in time.
            ValueError: The answer makes no sense.
        """
        return _read(self._ask("GET", "/status", timeout))

    def stacks(self, timeout: float) -> str:
        """Returns the Python stacks of its threads; raises as `status`."""
        return self._ask("GET", "/stacks", timeout)

    def program(self, index: int, timeout: float) -> Any:
        """Returns the program that it compared as number `index`, None if it has not come to it; raises as `status`."""
        return _read(self._ask("GET", f"/programs/{index}", timeout))

    def post(self, path: str, document: Mapping[str, Any], timeout: float) -> None:
        """Tells it something; raises as `status`."""
        # An error of the script may quote what is no text; the rest of it is to arrive all the same.
        self._ask("POST", path, timeout, json.dumps(document, ensure_ascii=False).encode(errors="replace"))

    def close(self) -> None:
        """Closes the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(self, method: str, path: str, timeout: float, body: bytes | None = None) -> str:
        with self._lock:
            was_open = self._connection is not None
            try:
                return self._asked(method, path, timeout, body)
            except (ConnectionError, http.client.HTTPException) as error:
                self.close()
                if not was_open and isinstance(error, ConnectionError):
                    raise
                if not was_open:  # Somebody else listens there.
                    raise ConnectionError(f"{self._host}:{self._port}: {error!r:.200}") from error
            # A connection that broke while it was not used says nothing: ask once more, on a new one.
            try:
                return self._asked(method, path, timeout, body)
            except http.client.HTTPException as error:
                self.close()
                raise ConnectionError(f"{self._host}:{self._port}: {error}") from error

    def _asked(self, method: str, path: str, timeout: float, body: bytes | None) -> str:
        if self._connection is None:
            self._connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout)
        self._connection.timeout = timeout
        if self._connection.sock is not None:
            self._connection.sock.settimeout(timeout)
        try:
            self._connection.request(method, path, body, {TOKEN_HEADER: self._token})
            response = self._connection.getresponse()
            text = response.read(_LARGEST_ANSWER).decode(errors="replace")
        except BaseException:
            self.close()
            raise
        if response.status != http.HTTPStatus.OK:
            self.close()
            raise OSError(f"{self._host}:{self._port} answered {response.status} to {path}")
        return text


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("the answer is nested too deeply") from None


def in_parallel(calls: Sequence[Callable[[], Any]], timeout: float) -> list[Any]:
    """Returns the results of calls that wait for others; None for one that fails or takes longer than `timeout`."""
    results: list[Any] = [None] * len(calls)

    def run(i: int) -> None:
        with contextlib.suppress(Exception):
            results[i] = calls[i]()

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout)
    return results
