"""Whether every process can connect with every other one: asked once, before XLA's collectives try.

They would fail in the midst of the first program, with an error that names no process, and only some of the processes
would notice. Here all of them learn who cannot connect with whom, and end with the same error.
"""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax

from replicax.cluster.addresses import join_address, parse_address
from replicax.cluster.own_address import LOOPBACK, family, is_loopback, is_mine, resolve
from replicax.compat.jax_processes import collectives_are_gloo, publish, published
from replicax.errors import ClusterError, ClusterTimeoutError

_log = logging.getLogger(__name__)
_PREFIX = "replicax/reach"
_SECONDS_TO_CONNECT = 10.0
_SECONDS_FOR_ALL = 60.0  # at least; for the slowest of them
_AT_ONCE = 64
_STRANGERS = 512  # who may connect too, without being in the way
_MOST_SHOWN = 5
_CURE = (
    "Open all ports above 1024 between these machines, and see that each name stands for the same machine everywhere; "
    "`replicax doctor` on each of them shows more."
)


def agree_on_addresses(process: int, names: Sequence[str], first: str, ip: str, timeout_s: float) -> str:
    """Returns this machine's own address, once every process has connected with all others as collectives will.

    All processes call it, after JAX has connected them. Those with GPUs or TPUs are only warned of what does not work:
    their collectives may have a network of their own.

    Args:
        process: Number of this process.
        names: For each process how to call it in messages.
        first: `"host:port"` of process 0.
        ip: This machine's own address; empty if the other processes must tell it, which know the machine as `first`.
        timeout_s: How long to wait for the others, in seconds; a minute at least.

    Raises:
        ClusterError: Some process cannot connect with another one. All processes raise it.
        ClusterTimeoutError: Not all have answered in time.
    """
    meeting = _Meeting(process, names, time.monotonic() + max(timeout_s, _SECONDS_FOR_ALL))
    told = meeting.exchange("first", resolve(parse_address(first, "coordinator address").host))
    ip = ip or _as_seen(told)
    # The system greets them; nothing is read.
    with socket.create_server((ip, 0), family=family(ip), backlog=len(names) + _STRANGERS) as listener:
        ports = meeting.exchange("listens", [ip, listener.getsockname()[1]])
        failures = meeting.exchange("failures", _failures(process, ports))
    problems = [
        f"{names[i]} ({ports[i][0]}) cannot connect with {names[j]} ({join_address(*ports[j])}): {why}"
        for i, found in enumerate(failures)
        for j, why in found
    ]
    if problems:
        _complain(problems)
    return ip


def _as_seen(told: Sequence[Sequence[str]]) -> str:
    """Returns the address of this machine that other processes know it by; a loopback one only if there is no other."""
    mine = sorted((ip for ips in told for ip in ips if is_mine(ip)), key=is_loopback)
    return mine[0] if mine else LOOPBACK


def _complain(problems: Sequence[str]) -> None:
    more = len(problems) - _MOST_SHOWN
    shown = "; ".join([*problems[:_MOST_SHOWN], *([f"and {more} more"] if more > 0 else [])])
    if jax.default_backend() == "cpu" and collectives_are_gloo():
        raise ClusterError("The cluster", None, f"cannot train: {shown}", _CURE)
    _log.warning("Not all processes can connect with each other, which watching them needs: %s. %s", shown, _CURE)


class _Meeting:
    """All processes, and until when they wait for each other."""

    def __init__(self, process: int, names: Sequence[str], deadline: float):
        self._process, self._names, self._deadline = process, names, deadline
        self._timeout_s = deadline - time.monotonic()

    def exchange(self, what: str, mine: Any) -> list[Any]:
        """Returns what every process has given. Process 0 collects it, so that nobody asks all."""
        if self._process:
            publish(f"{_PREFIX}/{what}/{self._process}", json.dumps(mine))
            return self._get(f"{_PREFIX}/{what}", 0)
        given = [mine, *(self._get(f"{_PREFIX}/{what}/{i}", i) for i in range(1, len(self._names)))]
        publish(f"{_PREFIX}/{what}", json.dumps(given))
        return given

    def _get(self, key: str, whose: int) -> Any:
        text = published(key, max(1, round(1000 * (self._deadline - time.monotonic()))))
        if text is None:
            me, missing = self._names[self._process], [self._names[whose]]
            raise ClusterTimeoutError(me, self._timeout_s, missing, missing[0], "; it had been there before")
        return json.loads(text)


def _failures(process: int, addresses: Sequence[Sequence[Any]]) -> list[tuple[int, str]]:
    """Returns with whom this process cannot connect, and why."""
    others = [i for i in range(len(addresses)) if i != process]
    with ThreadPoolExecutor(min(_AT_ONCE, len(others)), "replicax-reach") as pool:
        found = list(pool.map(lambda i: _failure(*addresses[i]), others))
    return [(i, why) for i, why in zip(others, found, strict=True) if why]


def _failure(ip: str, port: int) -> str:
    try:
        socket.create_connection((ip, port), timeout=_SECONDS_TO_CONNECT).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""
