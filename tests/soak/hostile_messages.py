"""Hostile messages for `hostile.py`: what scanners, broken programs, and programs of bad intent may send to a port."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pickle
import random
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from replicax.cluster.signing import shown

TOKEN = "the-token-of-this-job"
ENCODINGS = ("utf-8", "utf-16", "utf-7", "utf-32")
_HELD = 100  # connections that stay open, per attacker

_marks: list[Path] = []
_numbers = itertools.count()


def leave_marks_in(folder: Path) -> None:
    """Lets each pickle that is sent from now on make a file in a folder, where somebody unpickles it."""
    _marks[:] = [folder]


class Bomb:
    """Makes a file where it is unpickled."""

    def __init__(self, mark: str):
        self._mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self._mark, "w")


def bomb() -> bytes:
    """Returns a pickle that makes a file of its own; without a folder for marks it does nothing."""
    return pickle.dumps(Bomb(str(_marks[0] / f"mark-{os.getpid()}-{next(_numbers)}")) if _marks else None)


def command() -> str:
    """Returns a shell command that makes a file of its own."""
    return f"touch {_marks[0] / f'mark-{os.getpid()}-{next(_numbers)}'}" if _marks else "true"


def pickled(rng: random.Random) -> bytes:
    body = bomb()
    return rng.choice(
        [
            body,
            body + b"\n",
            len(body).to_bytes(8, rng.choice(["big", "little"])) + body,
            b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body,
        ]
    )


def joining(rng: random.Random) -> bytes:
    """Asks as a worker that joins does, and proves what it does not know."""
    lines = [{"join": rng.choice([1, 2, 3]), "nonce": rng.randbytes(16).hex()}, {"proof": rng.randbytes(32).hex()}]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def of_ray(rng: random.Random) -> bytes:
    """Asks Ray's pages to run a command."""
    path = rng.choice(
        [
            "/metrics",
            "/api/jobs/",
            "/api/version",
            "/nodes",
            "/get_or_create_runtime_env",
            "/delete_runtime_env_if_possible",
        ]
    )
    body = rng.choice([json.dumps({"entrypoint": command(), "runtime_env": {}}).encode(), bomb()])
    method = rng.choice([b"GET", b"POST"])
    return method + b" %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(body)) + body


def greeting(rng: random.Random) -> bytes:
    """A greeting with something wrong: whoever has the token and sends a right one is a worker."""
    told = {"process": 1, "processes": 2, "token": _SHOWN, "info": {"same stall_timeout": 120.0}}
    key = rng.choice([*told, "more"])
    told[key] = rng.choice(FORGED_TOKENS if key == "token" else WRONG)
    return json.dumps(told).encode() + b"\n"


def mutated(rng: random.Random) -> bytes:
    line = bytearray(greeting(rng))
    for _ in range(rng.randrange(1, 6)):
        line[rng.randrange(len(line) - 1)] = rng.randrange(256)
    return bytes(line).replace(_SHOWN.encode(), b"")


def nested(rng: random.Random) -> bytes:
    opened, closed = rng.choice([(b"[", b"]"), (b'{"a":', b"}"), (b'[{"":', b"}]")])
    depth = rng.choice([20, 900, 5000, 50_000])
    return opened * depth + b"1" + closed * (depth if rng.random() < 0.5 else 0) + b"\n"


def wrong_type(rng: random.Random) -> bytes:
    return json.dumps(rng.choice(WRONG)).encode() + b"\n"


def encoded(rng: random.Random) -> bytes:
    text = rng.choice(
        ['{"token": "\u00e9"}', '"\ud800"', "\ufeff{}", "\0" * 9, '"\\ud800"', '{"a": NaN}', '{"a": 1e999}']
    )
    return text.encode(rng.choice(ENCODINGS), "surrogatepass") + b"\n"


def long_line(rng: random.Random) -> bytes:
    return rng.choice([b"x", b"1", b'"', b"\0", b" "]) * rng.choice([2**12, 2**16, 2**16 + 1, 2**18])


def random_bytes(rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice([1, 7, 300, 5000])) + rng.choice([b"", b"\n"])


def http_garbage(rng: random.Random) -> bytes:
    method = rng.choice(["GET", "POST", "PUT", "HEAD", "OPTIONS", "BREW", "", "\u00e9"])
    path = rng.choice(
        [
            *("/", "/status", "/stacks", "/alarm", "/goodbye", "/programs/1", f"/programs/{'9' * 25}", "/" * 70_000),
            *("/calls/1", f"/calls/{'9' * 19}", "/calls/-1", "/calls/\u00b2"),
        ]
    )
    token = rng.choice(["", "x", TOKEN, TOKEN + "\u00e9", "\0"])
    length = rng.choice(["0", "2", "-1", "1e3", "9" * 5000, "99999999", "0x10", "\u00b2", ""])
    body = rng.choice(
        [b"", b"{}", b"[" * 3000, b'{"text": 1}', b'{"index": true, "ended": 1}', b'"\\ud800"', b"\xff" * 50]
    )
    version = rng.choice(["HTTP/1.1", "HTTP/1.0", "HTTP/9.9", "", "HTTP/1.1.1"])
    head = f"{method} {path} {version}\r\nX-Replicax-Token: {token}\r\nContent-Length: {length}\r\n"
    head += "A: b\r\n" * rng.choice([0, 1, 150]) + rng.choice(
        ["Transfer-Encoding: chunked\r\n", "", "Expect: 100-continue\r\n"]
    )
    return head.encode("latin-1") + rng.choice([b"\r\n", b"\n", b""]) + body


def of_another_protocol(rng: random.Random) -> bytes:
    return rng.choice(
        [b"\x16\x03\x01\x00\xf5\x01\x00\x00\xf1\x03\x03" + rng.randbytes(200), b"SSH-2.0-OpenSSH_9.6\r\n",
         b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x80\x04\x95" + rng.randbytes(30), b"*1\r\n$4\r\nPING\r\n"]
    )  # fmt: skip


def nothing(rng: random.Random) -> bytes:
    del rng
    return b""


_SHOWN = shown(TOKEN, "process")  # what a worker shows at the rendezvous
FORGED_TOKENS = ["", "x", TOKEN, _SHOWN[:-1], _SHOWN.upper(), _SHOWN + "\0", "\ud800", None, [_SHOWN], True]
WRONG = [
    None,
    True,
    False,
    0,
    2,
    -1,
    1.5,
    10**30,
    "",
    "x",
    [],
    [1],
    {},
    {"go": []},
    [[]] * 50,
    {"same": {"a": [{}]}},
    "\u2028" * 99,
]
MESSAGES: Sequence[Callable[[random.Random], bytes]] = (
    greeting, mutated, nested, wrong_type, encoded, long_line, random_bytes, http_garbage, http_garbage,
    of_another_protocol, nothing, pickled, pickled, joining, of_ray,
)  # fmt: skip

_MOST_REFUSALS = 20


def is_a_member_to_gloo(message: bytes) -> bool:
    """Returns whether Gloo may take the sender for a member: it knows them by small numbers, of eight bytes."""
    return message[2:8] == bytes(6)


class Attacker:
    """Sends messages to a port; some connections it only opens, leaves half-way, or sends to a byte at a time."""

    def __init__(self, seed: int):
        self._rng = random.Random(seed)
        self._held: list[tuple[socket.socket, bytes]] = []
        self.sent = 0

    def attack(self, port: int, count: int) -> None:
        """Sends `count` messages, or until nobody listens there any more."""
        goal, refusals = self.sent + count, 0
        while self.sent < goal and refusals < _MOST_REFUSALS:
            message = self._rng.choice(MESSAGES)(self._rng)
            if is_a_member_to_gloo(message):
                continue
            try:
                connection = socket.create_connection(("127.0.0.1", port), timeout=2.0)
            except OSError:
                refusals += 1
                continue
            self.sent, refusals = self.sent + 1, 0
            with contextlib.suppress(OSError):  # It may hang up at any time.
                self._deal_with(connection, message)

    def close(self) -> None:
        """Hangs up."""
        for connection, _ in self._held:
            connection.close()

    def _deal_with(self, connection: socket.socket, message: bytes) -> None:
        how = self._rng.random()
        connection.settimeout(0.5)
        if how < 0.6:
            with connection:
                connection.sendall(message)
                if how < 0.2:
                    connection.recv(100)
                elif how < 0.3:  # so that the other side gets a reset
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            return
        half = message[: self._rng.randrange(len(message) + 1)] if how < 0.8 else b""
        self._held.append((connection, message[len(half) :]))
        connection.sendall(half)
        if len(self._held) > _HELD:
            self._held.pop(0)[0].close()
        slow = self._rng.randrange(len(self._held))
        connection, rest = self._held[slow]
        self._held[slow] = connection, rest[1:]
        connection.send(rest[:1])
