"""A proxy before an object store, which counts requests and strikes some of them."""

from __future__ import annotations

import contextlib
import enum
import http.client
import http.server
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

_CHUNK = 1 << 16


class Fault(enum.Enum):
    """What happens to a request."""

    REFUSED = "503, and the store has not got it"
    DONE_AND_REFUSED = "503, though the store has done it"
    SILENCE = "no answer in time, and the store has not got it"
    DONE_AND_SILENCE = "no answer in time, though the store has done it"
    CUT = "the connection is cut in the middle of what is sent"
    DONE_AND_CUT = "the connection is cut, though the store has done it"
    TWICE = "it arrives twice"
    LATE = "it arrives once more after the next three requests"
    KILL = "the process that asks is killed before the store has got it"
    DONE_AND_KILL = "the process that asks is killed when the store has done it"


class Proxy:
    """Passes requests on to the store at a port; `strike` chooses the next one that is struck."""

    def __init__(self, backend: int, seconds_of_silence: float = 2.0):
        self.backend, self._silence = backend, seconds_of_silence
        self.count = 0  # of requests since `reset`
        self.struck: list[str] = []  # what was struck since `reset`: method and path
        self.kill: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._at, self._fault = -1, Fault.REFUSED
        self._late: list[tuple[int, Callable[[], object]]] = []
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])

    def reset(self, at: int = -1, fault: Fault = Fault.REFUSED) -> None:
        """Begins to count anew; the request with the number `at` is struck."""
        with self._lock:
            self.count, self.struck, self._at, self._fault = 0, [], at, fault

    @contextlib.contextmanager
    def running(self) -> Iterator[Proxy]:
        """Answers while the block runs."""
        thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                with contextlib.suppress(ConnectionError, TimeoutError):
                    super().handle_one_request()

            def log_message(self, *_: object) -> None:
                pass

        for method in ("GET", "HEAD", "PUT", "POST", "DELETE"):
            setattr(Handler, f"do_{method}", lambda handler: proxy._answer(handler))
        return Handler

    def _answer(self, handler: Any) -> None:
        with self._lock:
            number, fault = self.count, self._fault if self.count == self._at else None
            self.count += 1
            due = [again for when, again in self._late if when <= self.count]
            self._late = [each for each in self._late if each[0] > self.count]
            if fault is not None:
                self.struck.append(f"{handler.command} {handler.path}")
        for again in due:
            again()
        length = int(handler.headers.get("Content-Length") or 0)
        if fault is Fault.CUT:
            handler.rfile.read(length // 2)
            self._cut(handler)
            return
        body = handler.rfile.read(length)
        headers = {name: value for name, value in handler.headers.items() if name.lower() != "expect"}

        method, path = handler.command, handler.path  # The handler answers the next request of its connection, too.

        def ask() -> tuple[int, list[tuple[str, str]], bytes]:
            connection = http.client.HTTPConnection("127.0.0.1", self.backend, timeout=30)
            try:
                connection.request(method, path, body or None, headers)
                response = connection.getresponse()
                return response.status, response.getheaders(), response.read()
            finally:
                connection.close()

        if fault is Fault.KILL:
            self.kill()
            return
        if fault is Fault.REFUSED:
            self._reply(handler, 503, [], b"slow down")
            return
        if fault is Fault.SILENCE:
            time.sleep(self._silence)
            self._cut(handler)
            return
        status, answered, data = ask()
        if fault is Fault.DONE_AND_KILL:
            self.kill()
        elif fault is Fault.DONE_AND_REFUSED:
            self._reply(handler, 503, [], b"slow down")
        elif fault is Fault.DONE_AND_SILENCE:
            time.sleep(self._silence)
            self._cut(handler)
        elif fault is Fault.DONE_AND_CUT:
            self._cut(handler)
        else:
            if fault is Fault.TWICE:
                status, answered, data = ask()
            if fault is Fault.LATE:
                with self._lock:
                    self._late.append((number + 4, ask))
            self._reply(handler, status, answered, data)

    def _reply(self, handler: Any, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
        handler.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                handler.send_header(name, value)
        length = {name.lower(): value for name, value in headers}.get("content-length")
        of_head = handler.command == "HEAD" and length is not None
        handler.send_header("Content-Length", str(length) if of_head else str(len(data)))
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(data)

    def _cut(self, handler: Any) -> None:
        handler.close_connection = True
        with contextlib.suppress(OSError):
            handler.connection.shutdown(socket.SHUT_RDWR)
