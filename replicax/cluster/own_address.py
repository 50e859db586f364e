"""This machine's own address, at which a task listens and which it tells the other tasks.

It is the address that the cluster gives for the task. XLA's collectives and Ray would take the address of the machine's
*name*, which on Debian and Ubuntu is a loopback address (`127.0.1.1 name` in the hosts file). Other machines would then
connect with themselves.

If the cluster does not know the address, or its name means a loopback address here while other tasks are on other
machines, it is the address from which this machine reaches the others. `REPLICAX_HOST` overrides it, for networks that
translate addresses. A process may know only the address of process 0, by a name that means a loopback address here.
Then only processes on other machines can know the address, and the result is empty.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import socket
import time
from collections.abc import Mapping, Sequence

from replicax.checks.environment_names import HOST
from replicax.cluster.addresses import parse_address
from replicax.cluster.config import ClusterConfig
from replicax.cluster.patience import CONNECTING, Patience
from replicax.errors import ClusterError

_log = logging.getLogger(__name__)
LOOPBACK = "127.0.0.1"


def own_ip_of(config: ClusterConfig, timeout_s: float) -> str:
    """Returns the IP address of this machine for a process of a cluster; see `own_ip`."""
    return own_ip(*own_and_others(config), timeout_s)


def own_and_others(config: ClusterConfig) -> tuple[str, str, list[str]]:
    """Returns the name of this task, its address (empty if it is not known), and the known addresses of the others."""
    assert config.task is not None  # One of several processes always has one.
    spec = config.spec
    addresses = {(job, index): spec.task_address(job, index) for job in spec.jobs for index in spec.task_indices(job)}
    own = addresses.pop((config.task.type, config.task.index), "")
    return str(config.task), own, [*addresses.values()]


def own_ip(
    task: str,
    address: str,
    others: Sequence[str],
    timeout_s: float,
    environ: Mapping[str, str] = os.environ,
    patience: Patience = CONNECTING,
) -> str:
    """Returns the IP address at which the other tasks of its cluster reach this machine; empty if only they know it."""
    told = environ.get(HOST, "").strip()
    if told:
        found, problem = _mine(told)
        if problem:
            raise ClusterError(HOST, told, f"cannot be used: {problem}", "Set it to an address of this machine.")
        return found
    start = time.monotonic()
    deadline, report_at = start + min(timeout_s, patience.start), start + 3 * patience.again
    while True:
        try:
            return _look(task, address, others)
        except ClusterError as error:
            if time.monotonic() >= deadline or (address and _is_ip(_host(address))):
                raise
            if time.monotonic() >= report_at:
                report_at = deadline
                _log.warning("%s waits for the name service. %s", task, error)
        time.sleep(patience.again / 5)


def is_mine(ip: str) -> bool:
    """Returns whether an IP address is one of this machine's."""
    try:
        with socket.socket(family(ip)) as probe:
            probe.bind((ip, 0))
    except OSError:
        return False
    return True


def is_loopback(ip: str) -> bool:
    """Returns whether only this machine itself can connect with an IP address."""
    return ipaddress.ip_address(ip).is_loopback


def resolve(host: str) -> list[str]:
    """Returns the IP addresses of a host's name, the preferred one first; none if the name is not known."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    ips = dict.fromkeys(str(entry[4][0]) for entry in found)
    return [ip for ip in ips if "%" not in ip]  # A link-local address is valid in its own network only.


def _look(task: str, address: str, others: Sequence[str]) -> str:
    return _from_address(task, address, others) if address else _from_others(task, others)


def _from_address(task: str, address: str, others: Sequence[str]) -> str:
    host = _host(address)
    own, problem = _mine(host)
    if not problem:
        if not is_loopback(own) or _is_ip(host):
            return own
        if not others:
            return ""
        if all(map(_leads_back, others)):
            return own
        found = _first_source(others, elsewhere=True)
        if found:
            return found
        problem = f"{host!r} means {own} on this machine, {_this_machine()}, which has no route to the others"
    raise ClusterError(f"The address of {task}", address, f"cannot be used: {problem}", _cure(host, others))


def _from_others(task: str, others: Sequence[str]) -> str:
    found = _first_source(others)
    if not found:
        raise ClusterError(
            f"The address of {task}",
            None,
            f"is not known to the cluster, and this machine, {_this_machine()}, has no route to {', '.join(others)}",
            f"Check the name service and the network, or set {HOST} to this machine's own address.",
        )
    return "" if is_loopback(found) and not any(_is_ip(_host(other)) for other in others) else found


def _mine(host: str) -> tuple[str, str]:
    """Returns this machine's address for `host`, a loopback one if need be, and `""`; or `""` and what is wrong."""
    ips = resolve(host)
    mine = sorted(filter(is_mine, ips), key=is_loopback)
    if mine:
        return mine[0], ""
    stands = (
        f"means {', '.join(ips)}, which is not an address of this machine"
        if ips
        else "is a name that is not known here"
    )
    return "", f"{host!r} {stands}, {_this_machine()}"


def _first_source(others: Sequence[str], elsewhere: bool = False) -> str:
    """Returns the address from which this machine reaches the first other one that it can reach, or `""`."""
    sources = (source_towards(ip) for other in others for ip in resolve(_host(other)))
    return next((source for source in sources if source and not (elsewhere and is_loopback(source))), "")


def source_towards(ip: str) -> str:
    """Returns the address from which this machine reaches another one; empty if it cannot. It sends nothing."""
    with socket.socket(family(ip), socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((ip, 9))
        except OSError:
            return ""
        return str(probe.getsockname()[0])


def _cure(host: str, others: Sequence[str]) -> str:
    own = _first_source(others, elsewhere=True)
    reached = f"This machine reaches the others from {own}. " if own else ""
    line = "" if _is_ip(host) else f"Let the hosts file or the name service say '{own or 'ADDRESS'} {host}'. "
    return (
        f"{reached}{line}Make sure that each machine gets its own task. If the network translates addresses, set "
        f"{HOST} to {own or 'the address that this machine itself has'}."
    )


def _this_machine() -> str:
    """Returns this machine's name and the addresses that it means here."""
    name = socket.gethostname()
    return f"whose name {name!r} means {', '.join(resolve(name)) or 'nothing'}"


def _leads_back(address: str) -> bool:
    """Returns whether an address leads back to this machine; False for a name that is not known."""
    ips = resolve(_host(address))
    return bool(ips) and all(map(is_loopback, ips))


def _host(address: str) -> str:
    host = parse_address(address, "address").host
    return LOOPBACK if _is_ip(host) and ipaddress.ip_address(host).is_unspecified else host


def _is_ip(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return bool(ipaddress.ip_address(host))
    return False


def family(ip: str) -> socket.AddressFamily:
    """Returns the kind of socket that an IP address needs."""
    return socket.AF_INET6 if ":" in ip else socket.AF_INET
