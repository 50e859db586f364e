"""Checks that the processes can connect with each other, before XLA's collectives try.

Of a few, each tries all others. Of many, each tries some that are spread evenly over all, and so many try it: one whose
ports are closed is found, and so are two parts of a network that do not reach each other, unless they are small.

The collectives would fail in the middle of the first program, with an error that names no process, and only some of the
processes would notice. Here all processes learn which of them cannot connect, and end with the same error.
"""

from __future__ import annotations

import itertools
import json
import logging
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import jax

from replicax.cluster.addresses import join_address, parse_address
from replicax.cluster.exchange import AbsentError, Exchange
from replicax.cluster.key_value_store import Store
from replicax.cluster.own_address import LOOPBACK, family, is_loopback, is_mine, resolve
from replicax.cluster.patience import CONNECTING, Patience
from replicax.compat.jax_processes import collectives_are_gloo
from replicax.errors import ClusterError, ClusterTimeoutError

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_PREFIX = "replicax/reach"
_turns = itertools.count()
_MOST_TRIED = 64  # others that a process connects with
_STRANGERS = 512  # that may connect too and cause no trouble
_MOST_SHOWN = 5
_CURE = (
    "Open all ports above 1024 between these machines, and make sure that each name means the same machine everywhere; "
    "`replicax doctor` on each of them shows more."
)


def agree_on_addresses(
    process: int,
    names: Sequence[str],
    first: str,
    ip: str,
    timeout_s: float,
    store: Store | None = None,
    turn: int | None = None,
    patience: Patience = CONNECTING,
) -> str:
    """Returns this machine's address after trying connections; all processes call it when JAX has connected."""
    prefix = f"{_PREFIX}/{next(_turns) if turn is None else turn}"
    seconds = max(timeout_s, patience.start)
    exchange = Exchange(prefix, process, range(len(names)), store=store, timeout_s=seconds)

    def told_by_all(stage: str, mine: _T) -> list[_T]:
        return [json.loads(each) for each in exchange.exchange_through_first(stage, json.dumps(mine).encode())]

    try:
        told = told_by_all("first", resolve(parse_address(first, "coordinator address").host))
        ip = ip or _as_seen(told)  # If only the others know it, they call this machine `first`.
        # The system greets them; nothing is read.
        with socket.create_server((ip, 0), family=family(ip), backlog=_MOST_TRIED + _STRANGERS) as listener:
            ports = told_by_all("listens", (ip, int(listener.getsockname()[1])))
            failures = told_by_all("failures", _failures(process, ports, 2 * patience.silence))
    except AbsentError as error:
        missing = [names[absent] for absent in error.missing]
        raise ClusterTimeoutError(names[process], seconds, missing, missing[0], "; it had been there before") from None
    problems = [
        f"{names[i]} ({ports[i][0]}) cannot connect with {names[j]} ({join_address(*ports[j])}): {why}"
        for i, found in enumerate(failures)
        for j, why in found
    ]
    if problems:
        _complain(problems)
    return ip


def _as_seen(told: Sequence[Sequence[str]]) -> str:
    """Returns the address under which other processes know this machine; a loopback one only without another."""
    mine = sorted((ip for ips in told for ip in ips if is_mine(ip)), key=is_loopback)
    return mine[0] if mine else LOOPBACK


def _complain(problems: Sequence[str]) -> None:
    more = len(problems) - _MOST_SHOWN
    shown = "; ".join([*problems[:_MOST_SHOWN], *([f"and {more} more"] if more > 0 else [])])
    if jax.default_backend() == "cpu" and collectives_are_gloo():
        raise ClusterError("The cluster", None, f"cannot train: {shown}", _CURE)
    # The collectives of GPUs and TPUs may have a network of their own.
    _log.warning("Not all processes can connect with each other, which watching them needs: %s. %s", shown, _CURE)


def _failures(process: int, addresses: Sequence[tuple[str, int]], seconds: float) -> list[tuple[int, str]]:
    """Returns the processes with which this one cannot connect, and why."""
    others = _tried(process, len(addresses))
    with ThreadPoolExecutor(len(others), "replicax-reach") as pool:
        found = list(pool.map(lambda i: _failure(*addresses[i], seconds), others))
    return [(i, why) for i, why in zip(others, found, strict=True) if why]


def _tried(process: int, count: int) -> list[int]:
    """Returns the processes that one tries, of `count`."""
    tries = min(count - 1, _MOST_TRIED)
    return sorted((process + 1 + k * (count - 1) // tries) % count for k in range(tries))


def _failure(ip: str, port: int, seconds: float) -> str:
    try:
        socket.create_connection((ip, port), timeout=seconds).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""
