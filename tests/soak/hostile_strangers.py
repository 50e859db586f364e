"""Strangers for `hostile.py`, in a process of their own that may be another user's.

    python -m tests.soak.hostile_strangers SEED MARKS [USER]

It reads lines of JSON: which ports to attack, and whether to write to the key-value stores of JAX's coordination
services that listen at some of them. At the end of its input it says how much it has done.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import random
import re
import resource
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import grpc.experimental  # Loaded now: another user cannot read where this Python is.

from tests.soak.hostile_messages import ENCODINGS, Attacker, bomb, leave_marks_in

_MOST_SILENT, _SILENT_AT_ONCE = 600, 70
_SECONDS_OF_A_CALL = 0.5
_PAUSE_S = 0.003
_ATTACKERS = 3
_SERVICE = "/xla.coordination.CoordinationService/"
#: Calls that run something where Ray's checks are passed: workers, nodes, the head.
_OF_RAY = (
    "/ray.rpc.CoreWorkerService/PushTask",
    "/ray.rpc.CoreWorkerService/KillActor",
    "/ray.rpc.NodeManagerService/RequestWorkerLease",
    "/ray.rpc.NodeManagerService/ShutdownRaylet",
    "/ray.rpc.InternalKVGcsService/InternalKVPut",
    "/ray.rpc.JobInfoGcsService/AddJob",
    "/ray.rpc.ActorInfoGcsService/RegisterActor",
    "/ray.rpc.RayletDriver/Datapath",
)
#: Keys that the processes of our jobs use, with numbers that go up.
_KEYS = (
    "replicax/exchange/{n}/{p}/0",
    "replicax/exchange/{n}/all/0/0",
    "replicax/reach/0/first/{p}/0",
    "replicax/reach/0/listens/all/0/0",
    "replicax/data/{n}/0/{p}/0",
    "replicax/barrier/barrier of 0,1/{n}/missing/decided",
    "replicax/preemption/{n}/0/preempted/decided",
    "replicax/batch/{n}/{p}",
    "life/{n}",
    "beat/{p}",
    "note/{p}",
    "gone/{p}/{n}",
    "roll/{n}",
    "at",
    "service/{n}",
    "here/{n}/0/{p}",
    "ended/{n}/0/{p}",
    "outcome/{n}/0",
    "call/{n}",
    "silent/{n}/{p}",
    "done/{n}/{p}",
    "ending",
)


class Orders:
    """What to attack now.

    Attributes:
        ports: The ports.
        writes: Whether to write to stores.
        over: Set at the end.
    """

    def __init__(self) -> None:
        self.ports: list[int] = []
        self.writes = False
        self.over = threading.Event()

    def read(self) -> None:
        """Reads orders to their end."""
        for line in sys.stdin:
            told = json.loads(line)
            self.ports, self.writes = told["ports"], told["writes"]
        self.over.set()

    def port(self, rng: random.Random) -> int | None:
        """Returns a port to attack; None, after a while, if there is none."""
        ports = self.ports
        if ports and not self.over.is_set():
            return rng.choice(ports)
        self.over.wait(0.05)
        return None


class Talker:
    """Sends messages of all kinds."""

    def __init__(self, orders: Orders, seed: int):
        self._orders, self._rng, self._attacker = orders, random.Random(seed), Attacker(seed)

    def run(self) -> dict[str, int]:
        while not self._orders.over.is_set():
            port = self._orders.port(self._rng)
            if port is not None:
                self._attacker.attack(port, 1)
                time.sleep(_PAUSE_S)
        self._attacker.close()
        return {"messages": self._attacker.sent}


class Silent:
    """Connects, and says nothing."""

    def __init__(self, orders: Orders, seed: int):
        self._orders, self._rng = orders, random.Random(seed)

    def run(self) -> dict[str, int]:
        held: list[socket.socket] = []
        count = 0
        while not self._orders.over.is_set():
            port = self._orders.port(self._rng)
            for _ in range(_SILENT_AT_ONCE if port is not None else 0):
                with contextlib.suppress(OSError):
                    held.append(socket.create_connection(("127.0.0.1", port), timeout=0.5))
                    count += 1
            while len(held) > _MOST_SILENT:
                held.pop(0).close()
            self._orders.over.wait(0.5)
        for each in held:
            each.close()
        return {"silent": count}


class Caller:
    """Calls functions of JAX's and Ray's services, which it has no right to."""

    def __init__(self, orders: Orders, seed: int):
        self._orders, self._rng = orders, random.Random(seed)
        self._channels: dict[int, grpc.Channel] = {}
        self._deaf: dict[int, float] = {}  # ports where nobody understands, and until when that is believed
        self._numbers: dict[int, bytes] = {}
        self._calls, self._writes, self._refusal = 0, 0, ""

    def run(self) -> dict[str, int]:
        while not self._orders.over.is_set():
            port = self._orders.port(self._rng)
            if port is None or self._deaf.get(port, 0.0) > time.monotonic():
                self._orders.over.wait(0.01)
                continue
            # A service of JAX's tells anybody what is in its store.
            listing = self._listed(port, b"replicax")
            if listing is not None:
                self._disturb(port, listing)
            else:
                self._deaf[port] = time.monotonic() + 2.0
                for method in self._rng.sample(_OF_RAY, 2):
                    self._asked(
                        port, method, self._rng.choice([bomb(), b"", _field(1, bomb()), self._rng.randbytes(40)])
                    )
        for channel in self._channels.values():
            channel.close()
        return {"calls": self._calls, "writes": self._writes}

    def _disturb(self, port: int, listing: bytes) -> None:
        if not self._orders.writes:
            return
        known = dict(_entries(listing))
        for folder in (b"roll", b"life", b"note", b"here"):
            known |= dict(_entries(self._listed(port, folder) or b""))
        keys = [key.format(n=self._rng.randrange(12), p=self._rng.randrange(3)) for key in self._rng.sample(_KEYS, 4)]
        # What comes next where somebody has been already.
        seen = self._rng.sample(sorted(known), min(4, len(known)))
        keys += [re.sub(r"\d+", lambda number: str(int(number[0]) + self._rng.randrange(3)), key) for key in seen]
        for key in keys:
            body = bomb()
            value = self._rng.choice(
                [
                    (1).to_bytes(4, "big") + body,
                    body,
                    bytes(32) + (1).to_bytes(4, "big") + bytes(32) + body,
                    b'{"go": [1, {}]}',
                    b"0:0:" + body,
                    b"",
                    *[known[each] for each in seen],  # A message of the job's, at another place.
                ]
            )
            entry = _field(1, key.encode()) + _field(2, value)
            overwrite = b"\x18\x01" if self._rng.random() < 0.5 else b""
            if self._of_jax(port, "InsertKeyValue", _field(2, entry) + overwrite) is not None:
                self._writes += 1

    def _listed(self, port: int, folder: bytes) -> bytes | None:
        """Returns what is in a folder of a store; None if there is no store."""
        return self._of_jax(port, "GetKeyValueDir", _field(2, folder))

    def _of_jax(self, port: int, method: str, message: bytes) -> bytes | None:
        """Calls a service of JAX's. It wants a number of its own, and tells it to whoever has another one."""
        for _ in range(2):
            answer = self._asked(port, _SERVICE + method, _field(1, self._numbers.get(port, b"")) + message)
            wanted = re.search(r"wrong service incarnation.*currently (\d+)", self._refusal)
            if answer is not None or wanted is None:
                return answer
            self._numbers[port] = b"\x19" + struct.pack("<Q", int(wanted[1]))
        return None

    def _asked(self, port: int, method: str, message: bytes) -> bytes | None:
        """Returns the answer to a call; None if it is refused."""
        self._calls += 1
        if port not in self._channels:
            self._channels[port] = grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.enable_http_proxy", 0)])
        try:
            answer: bytes = self._channels[port].unary_unary(method)(message, timeout=_SECONDS_OF_A_CALL)
        except grpc.RpcError as error:
            self._refusal = str(error.details()) if isinstance(error, grpc.Call) else ""
            return None
        return answer


def _field(number: int, value: bytes) -> bytes:
    """Returns a field of bytes of a protocol buffer."""
    return bytes([8 * number + 2]) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields number and value of the fields of a protocol buffer that has only fields of bytes."""
    at = 0

    def number() -> int:
        nonlocal at
        found = shift = 0
        while True:
            found |= (message[at] & 0x7F) << shift
            shift, at = shift + 7, at + 1
            if message[at - 1] < 0x80:
                return found

    while at < len(message):
        tag, size = number(), number()
        yield tag >> 3, message[at : at + size]
        at += size


def _entries(listing: bytes) -> Iterator[tuple[str, bytes]]:
    """Yields keys and values of an answer to GetKeyValueDir."""
    for number, entry in _fields(listing):
        if number == 2:
            parts = dict(_fields(entry))
            yield parts[1].decode(errors="replace"), parts.get(2, b"")


def become(user: str) -> None:
    """Lets this process belong to another user from now on."""
    found = pwd.getpwnam(user)
    os.setgroups([])
    os.setgid(found.pw_gid)
    os.setuid(found.pw_uid)


def main(seed: int, marks: Path, user: str = "") -> None:
    leave_marks_in(marks)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    for name in (*ENCODINGS, "idna"):
        "".encode(name)  # Another user cannot read the modules of Python, and these are imported late.
    if user:
        become(user)
    orders, done = Orders(), {"uid": os.getuid(), "messages": 0, "silent": 0, "calls": 0, "writes": 0}
    lock = threading.Lock()

    def work(run: Callable[[], dict[str, int]]) -> None:
        try:
            counts = run()
        except BaseException:
            traceback.print_exc()
            os._exit(1)  # A stranger that does nothing must not go unnoticed.
        with lock:
            for name, count in counts.items():
                done[name] += count

    attackers = [*(Talker(orders, seed + i) for i in range(_ATTACKERS)), Silent(orders, seed), Caller(orders, seed)]
    threads = [threading.Thread(target=work, args=(attacker.run,)) for attacker in attackers]
    for thread in threads:
        thread.start()
    orders.read()
    for thread in threads:
        thread.join()
    print(json.dumps(done), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
