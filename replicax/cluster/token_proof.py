"""Connections to a port of ours: they are strangers until they have proved that they know the job's token.

Every listener keeps those who have not in `Strangers`: they have two seconds, and if they are too many the oldest goes.
One that has proved it is never dropped.

Where a connection stays open, both sides prove it to each other (`proved`, `demanded`), and the token never travels:

| from | message |
| --- | --- |
| joining side | `join`: the version of these messages, `nonce` |
| host | `nonce`, or `no` and why |
| joining side | `proof`: an HMAC of its role with the session's key |
| host | `proof`, likewise with its own role; or `no` |

The session's key is an HMAC of both nonces with the token. Each later message carries an HMAC with that key over the
sender's role, the message's number and its bytes, so none can be forged, repeated, left out or sent back.
"""

from __future__ import annotations

import hmac
import re
import secrets
import socket
import threading
import time
from collections.abc import Mapping
from typing import Final, Generic, Literal, TypeVar

from replicax.cluster.lines import decoded, encoded

#: How long a connection may stay without a proof.
SECONDS_TO_PROVE = 2.0
#: The longest message of a session, in bytes.
LONGEST_LINE = 2**20
_LONGEST_OF_A_STRANGER = 2**12
_VERSION = 2
_NONCE = re.compile("[0-9a-f]{32}")
_BYTES = 65_536
_T = TypeVar("_T")
_Role = Literal["guest", "host"]
GUEST: Final = "guest"
HOST: Final = "host"


class Strangers(Generic[_T]):
    """Connections without a proof, the oldest first. Any thread may call it."""

    def __init__(self, seconds: float = SECONDS_TO_PROVE, most: int = 256):
        self.seconds, self._most = seconds, most  # that each may stay; how many at once, before the oldest goes
        self._lock = threading.Lock()
        self._since: dict[_T, float] = {}

    def all(self) -> list[_T]:
        """Returns all of them, the oldest first."""
        with self._lock:
            return [*self._since]

    def add(self, stranger: _T) -> None:
        """Notes a new connection."""
        with self._lock:
            self._since[stranger] = time.monotonic()

    def remove(self, stranger: _T) -> bool:
        """Forgets a connection that has proved itself or has ended; returns whether it was still a stranger."""
        with self._lock:
            return self._since.pop(stranger, None) is not None

    def due(self) -> float:
        """Returns when the oldest one's time is up (`time.monotonic`)."""
        with self._lock:
            return next(iter(self._since.values()), float("inf")) + self.seconds

    def overdue(self) -> list[_T]:
        """Forgets and returns those whose time is up, and the oldest of too many: the caller closes them."""
        late = time.monotonic() - self.seconds
        with self._lock:
            too_many = len(self._since) - self._most
            found = [each for i, (each, since) in enumerate(self._since.items()) if i < too_many or since <= late]
            return self._without(found)

    def oldest(self) -> list[_T]:
        """Forgets and returns the oldest one, if there is any."""
        with self._lock:
            return self._without([*self._since][:1])

    def _without(self, found: list[_T]) -> list[_T]:
        for each in found:
            del self._since[each]
        return found


class Session:
    """A connection of two who have proved to each other that they know the job's token."""

    def __init__(self, lines: _Lines, key: bytes, own: _Role):
        self.connection = lines.connection
        self._lines, self._key, self._own = lines, key, own
        self._peer: _Role = HOST if own == GUEST else GUEST
        self._lock = threading.Lock()
        self._told = self._heard = 0

    def tell(self, message: Mapping[str, object]) -> None:
        """Sends a message. Any thread may call it."""
        body = encoded(message)
        with self._lock:
            self.connection.sendall(_signature(self._key, self._own, self._told, body[:-1]).encode() + b" " + body)
            self._told += 1

    def hear(self, deadline: float | None = None) -> dict[str, object]:
        """Returns the next message; waits for it until `deadline` (`time.monotonic`), or without limit."""
        signature, _, body = self._lines.next(LONGEST_LINE, deadline).partition(b" ")
        if not hmac.compare_digest(signature, _signature(self._key, self._peer, self._heard, body).encode()):
            raise ValueError("a message that the other side did not write")
        self._heard += 1
        return decoded(body, LONGEST_LINE)


def proved(connection: socket.socket, token: str, seconds: float) -> Session:
    """Proves to the host of a job that this process knows the token, and lets the host prove it."""
    deadline, lines, mine = time.monotonic() + seconds, _Lines(connection), secrets.token_hex(16)
    connection.settimeout(seconds)
    connection.sendall(encoded({"join": _VERSION, "nonce": mine}))
    key = _session_key(token, mine, _nonce(_allowed(lines.stranger(deadline))))
    connection.sendall(encoded({"proof": _signature(key, GUEST)}))
    if not _is_proof(_allowed(lines.stranger(deadline)), key, HOST):
        raise ValueError("it does not know the job's token (REPLICAX_TOKEN)")
    return Session(lines, key, GUEST)


def demanded(connection: socket.socket, token: str, seconds: float = SECONDS_TO_PROVE) -> Session:
    """Lets the joining side prove that it knows the token, then proves it in turn."""
    deadline, lines, mine = time.monotonic() + seconds, _Lines(connection), secrets.token_hex(16)
    connection.settimeout(seconds)
    asked = lines.stranger(deadline)
    if "join" in asked and asked["join"] != _VERSION:
        connection.sendall(encoded({"no": "it has another version of replicax"}))
        raise ValueError("it has another version")
    key = _session_key(token, _nonce(asked), mine)
    connection.sendall(encoded({"nonce": mine}))
    if not _is_proof(lines.stranger(deadline), key, GUEST):
        connection.sendall(encoded({"no": "its token (REPLICAX_TOKEN) is not that of the job"}))
        raise ValueError("it does not know the token")
    connection.sendall(encoded({"proof": _signature(key, HOST)}))
    return Session(lines, key, HOST)


class _Lines:
    """Reads a connection line by line."""

    def __init__(self, connection: socket.socket):
        self.connection = connection
        self._heard = bytearray()

    def stranger(self, deadline: float) -> dict[str, object]:
        """Returns the next message of one who has proved nothing yet."""
        return decoded(self.next(_LONGEST_OF_A_STRANGER, deadline), _LONGEST_OF_A_STRANGER)

    def next(self, longest: int, deadline: float | None) -> bytes:
        """Returns the next line without its end."""
        while (end := self._heard.find(b"\n")) < 0:
            if len(self._heard) > longest:
                raise ValueError("it sends too much")
            self.connection.settimeout(None if deadline is None else max(deadline - time.monotonic(), 0.001))
            chunk = self.connection.recv(_BYTES)
            if not chunk:
                raise ConnectionResetError("it closes the connection")
            self._heard += chunk
        line = bytes(self._heard[:end])
        del self._heard[: end + 1]
        return line


def _allowed(answer: dict[str, object]) -> dict[str, object]:
    if "no" in answer:
        raise ConnectionRefusedError(str(answer["no"]))
    return answer


def _nonce(message: Mapping[str, object]) -> str:
    nonce = message.get("nonce")
    if not isinstance(nonce, str) or not _NONCE.fullmatch(nonce):
        raise ValueError("it sends something else")
    return nonce


def _session_key(token: str, guest: str, host: str) -> bytes:
    return hmac.digest(token.encode(), f"replicax session {guest} {host}".encode(), "sha256")


def _is_proof(message: Mapping[str, object], key: bytes, role: _Role) -> bool:
    return hmac.compare_digest(str(message.get("proof")).encode(), _signature(key, role).encode())


def _signature(key: bytes, role: _Role, number: int = -1, message: bytes = b"") -> str:
    """Returns the HMAC of a message of this role; that of none is the proof."""
    return hmac.digest(key, f"{role} {number} ".encode() + message, "sha256").hex()
