"""The health server of a worker: it answers a few questions of the other workers, whatever the main thread does.

It answers only clients that know the job's token, in JSON and text, and understands only the requests in this file.
Anybody may connect. A connection that does not show the token in time is closed, and their number is limited.
"""

from __future__ import annotations

import contextlib
import hmac
import http.server
import json
import socket
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Protocol, TypeAlias

from replicax.cluster.lines import decoded, is_number
from replicax.cluster.strangers import Strangers
from replicax.group.health.client import TOKEN_HEADER
from replicax.runtime.call_order import RecordedCall, order_from
from replicax.runtime.clock import frames_of_threads

_LARGEST_QUESTION = 2**23
_Address: TypeAlias = tuple[str, int] | tuple[str, int, int, int]  # of IPv4 or IPv6
# Nobody waits for these: an idle connection is closed, and its client opens another; a pause before the next `accept`.
_SECONDS_OF_SILENCE, _SECONDS_TO_RECOVER = 60.0, 0.05


class Answers(Protocol):
    """The monitor of this process, as the server needs it."""

    def status(self) -> Mapping[str, object]:
        """Returns what this worker is doing."""

    def program(self, index: int) -> Mapping[str, object] | None:
        """Returns the program that this worker has compared at `index`."""

    def call(self, number: int) -> RecordedCall | None:
        """Returns this worker's `number`-th call."""

    def on_alarm(self, document: Mapping[str, object]) -> None:
        """Notes an alarm that another worker has raised."""

    def on_goodbye(self, document: Mapping[str, object]) -> None:
        """Notes that another worker's script has ended."""


class HealthServer(http.server.ThreadingHTTPServer):
    """Listens as soon as it is made, and answers after `answer` has given it the token."""

    daemon_threads = True
    request_queue_size = 512

    def __init__(self, host: str, strangers: Strangers[socket.socket] | None = None):
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, 0), _Handler)
        self._token: bytes | None = None
        self.answers: Answers | None = None
        self._strangers = strangers or Strangers()

    @property
    def port(self) -> int:
        """The port, which the system has chosen."""
        return self.server_address[1]

    def answer(self, token: str, answers: Answers) -> None:
        """Begins to answer, in a thread."""
        self._token, self.answers = token.encode(), answers
        threading.Thread(target=self.serve_forever, name="replicax-health-server", daemon=True).start()

    def knows(self, token: str | None) -> bool:
        """Returns whether a question comes from this job."""
        return self._token is not None and token is not None and hmac.compare_digest(token.encode(), self._token)

    def server_bind(self) -> None:
        """Binds the socket without asking the name service for the name of this machine."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def get_request(self) -> tuple[socket.socket, _Address]:
        """Accepts a connection, which is a stranger's until it has shown the token."""
        try:
            connection, address = super().get_request()
        except OSError:  # It was closed again, or this process has too many open files: pause before the next.
            time.sleep(_SECONDS_TO_RECOVER)
            raise
        self._strangers.add(connection)
        self.service_actions()
        return connection, address

    def recognize(self, connection: socket.socket) -> None:
        """Notes that a connection is one of this job's."""
        self._strangers.remove(connection)

    def shutdown_request(self, request: socket.socket | tuple[bytes, socket.socket]) -> None:
        """Forgets a connection that ends."""
        if isinstance(request, socket.socket):
            self.recognize(request)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Closes connections of strangers that take too long or are too many; their threads notice it."""
        for connection in self._strangers.overdue():
            with contextlib.suppress(OSError):  # It was closed already.
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:
        """Reports nothing: the client has gone, or does not belong to this job."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # Keeps connections open.
    timeout = _SECONDS_OF_SILENCE
    server: HealthServer

    def do_GET(self) -> None:
        answers = self._allowed()
        if answers is None:
            return
        if self.path == "/status":
            self._say(json.dumps(answers.status()))
        elif self.path == "/stacks":
            self._say(stacks(), "text/plain; charset=utf-8")
        elif self.path.startswith("/programs/") and self.path[10:].isdecimal() and len(self.path) < 30:
            self._say(json.dumps(answers.program(int(self.path[10:]))))
        elif self.path.startswith("/calls/") and self.path[7:].isdecimal() and len(self.path) < 30:
            self._say(json.dumps(answers.call(int(self.path[7:]))))
        else:
            self._refuse(HTTPStatus.NOT_FOUND)

    def do_POST(self) -> None:
        answers = self._allowed()
        document = self._document() if answers is not None else None
        if answers is None or document is None:
            return
        if self.path not in _FORMS:
            return self._refuse(HTTPStatus.NOT_FOUND)
        if not _FORMS[self.path](document):
            return self._refuse(HTTPStatus.BAD_REQUEST)
        tell = answers.on_alarm if self.path == "/alarm" else answers.on_goodbye
        tell(document)
        self._say("{}")

    def _allowed(self) -> Answers | None:
        if self.server.knows(self.headers.get(TOKEN_HEADER)):
            self.server.recognize(self.connection)
            return self.server.answers
        self._refuse(HTTPStatus.FORBIDDEN)
        return None

    def _document(self) -> Mapping[str, object] | None:
        length = self.headers.get("Content-Length", "")
        if len(length) < _MOST_DIGITS and length.isdecimal() and int(length) <= _LARGEST_QUESTION:
            with contextlib.suppress(ValueError):
                return decoded(self.rfile.read(int(length)), _LARGEST_QUESTION)
        self._refuse(HTTPStatus.BAD_REQUEST)
        return None

    def _say(self, text: str, kind: str = "application/json") -> None:
        body = text.encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _refuse(self, status: HTTPStatus) -> None:
        self.close_connection = True
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.send_header("Connection", "close")
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Writes no log, since there is a question every second."""


def _is_alarm(document: Mapping[str, object]) -> bool:
    culprits = document.get("culprits")
    return (
        all(isinstance(document.get(part), str) for part in ("text", "summary"))
        and is_number(document.get("code"), 0, 256)
        and isinstance(culprits, list)
        and all(is_number(culprit, 0, 2**31) for culprit in culprits)
    )


def _is_goodbye(document: Mapping[str, object]) -> bool:
    return is_number(document.get("index"), 0, 2**31) and isinstance(document.get("ended"), str) and _is_order(document)


def _is_order(document: Mapping[str, object]) -> bool:
    try:
        order_from(document.get("order"))
    except ValueError:
        return False
    return True


_MOST_DIGITS = 12
_FORMS: Mapping[str, Callable[[Mapping[str, object]], bool]] = {"/alarm": _is_alarm, "/goodbye": _is_goodbye}


def stacks() -> str:
    """Returns the Python stacks of all threads of this process, the main thread first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    own = threading.get_ident()
    with frames_of_threads() as frames:
        shown = {ident: "".join(traceback.format_stack(frame)) for ident, frame in frames.items() if ident != own}
    ordered = sorted(shown.items(), key=lambda item: item[0] != main)
    return "\n".join(f"Thread {names.get(ident, ident)!r}:\n{stack}" for ident, stack in ordered)
