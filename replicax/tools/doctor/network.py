"""The cluster that this process would join: its description, names, ports, peers, and proxies in between."""

from __future__ import annotations

import errno
import functools
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

from replicax.cluster import ClusterConfig, Detection, detect_cluster, parse_address
from replicax.cluster.environment import Environ
from replicax.cluster.own_address import LOOPBACK, family, own_and_others, own_ip, resolve
from replicax.errors import ClusterError
from replicax.tools.doctor.findings import Finding, fail, ok, warn

SECONDS_TO_ANSWER = 2.0
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy", "all_proxy")
_NO_PROXIES = ("no_grpc_proxy", "no_proxy")


def check_cluster(environ: Environ) -> tuple[list[Finding], Detection | None]:
    """Checks the cluster that the environment describes; returns the findings and, if it can be read, the cluster."""
    try:
        detection = detect_cluster(environ)
    except ClusterError as error:
        return [fail("cluster", str(error), error.cure, field=error.field, value=error.value)], None
    found = detection.config
    details = {
        "source": detection.winner,
        "process": str(found),
        "cluster": found.as_dict(),
        "sources": [
            {"name": each.name, "applies": each.applies, "because": each.because} for each in detection.candidates
        ],
    }
    findings = [ok("cluster", f"this process is {detection}", **details)]
    findings += [
        warn("cluster conflict", conflict, "Unset the variables of the source that is wrong.")
        for conflict in detection.conflicts
    ]
    return findings, detection


def check_addresses(
    config: ClusterConfig, environ: Environ = os.environ, timeout_s: float = SECONDS_TO_ANSWER
) -> Iterator[Finding]:
    """Checks that all names resolve, this task's address is this machine's, its port is free, and who else answers."""
    tasks = _tasks(config)
    if not tasks:
        return
    mine = str(config.task)
    answers = _together({name: functools.partial(_resolved, address) for name, address in tasks}, 2 * timeout_s)
    broken = {name: answer for name, answer in answers.items() if answer}
    if broken:
        text = "; ".join(f"{name}: {answer}" for name, answer in broken.items())
        cure = "Correct the names, or look at the name service (on Kubernetes: the headless service)."
        yield fail("names", text, cure, unresolved=[*broken])
    else:
        yield ok("names", f"all {len(tasks)} addresses resolve")
    others = [(name, address) for name, address in tasks if name != mine]
    if others:
        yield from _check_own(config, environ)
    asked = [(name, address) for name, address in others if name not in broken]
    if asked:
        yield _check_peers(asked, timeout_s)


def _check_own(config: ClusterConfig, environ: Environ) -> Iterator[Finding]:
    """Checks that the others can use this task's address, and that its port is free."""
    task, address, others = own_and_others(config)
    try:
        ip = own_ip(task, address, others, 0.0, environ)
    except ClusterError as error:
        yield fail("own address", str(error), error.cure, field=error.field, value=error.value)
        return
    host = parse_address(address, "address").host if address else ""
    stands_for = resolve(host) if host else []
    text = f"{task} listens at {ip}" if ip else f"{task} will learn from the others where they reach it"
    if ip not in stands_for and host:
        text += f"; {host!r}, its name in the cluster, means {', '.join(stands_for)} on this machine"
    yield ok("own address", text, address=ip, resolved=stands_for)
    if address:
        yield check_port(task, address, ip or stands_for[0])


def _tasks(config: ClusterConfig) -> list[tuple[str, str]]:
    """Returns the names and addresses of all tasks that are known."""
    spec = config.spec
    return [(f"{job}:{index}", spec.task_address(job, index)) for job in spec.jobs for index in spec.task_indices(job)]


def _resolved(address: str) -> str:
    """Returns "" if the name of an address is known, or what is wrong."""
    where = parse_address(address, "address")
    try:
        socket.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM)
    except OSError as error:
        return f"{where.host} is not known ({error.strerror or error})"
    return ""


def check_port(task: str, address: str, ip: str) -> Finding:
    """Checks that this task can listen at the port of its own address, on one of this machine's IP addresses."""
    with socket.socket(family(ip), socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((ip, parse_address(address, "address").port))
            listener.listen()
        except OSError as error:
            return _cannot_listen(task, address, error)
    return ok("port", f"{task} can listen at {address}", address=address)


def _cannot_listen(task: str, address: str, error: OSError) -> Finding:
    if error.errno == errno.EADDRINUSE:
        cure = "End the process that listens there (`ss -ltnp`), or take another port in all tasks' settings."
        return fail("port", f"{address}, the address of {task}, is taken", cure, address=address)
    cure = "Ports below 1024 need rights; choose one above."
    return fail("port", f"{task} cannot listen at {address}: {error.strerror}", cure, address=address)


def _check_peers(others: Sequence[tuple[str, str]], timeout_s: float) -> Finding:
    asked = {name: functools.partial(_asked, address, timeout_s) for name, address in others}
    states = _together(asked, 2 * timeout_s)
    silent = {name: state for name, state in states.items() if state not in ("listens", "not started")}
    text = ", ".join(f"{name} {state}" for name, state in states.items())
    if silent:
        cure = "Start those machines; open the port of the first worker, and those above 1024 between the workers."
        return warn("peers", text, cure, peers=states)
    return ok("peers", text, peers=states)


def _asked(address: str, timeout_s: float) -> str:
    """Returns whether a peer's machine answers. A refusal is an answer: the machine is there, its task is not."""
    where = parse_address(address, "address")
    try:
        socket.create_connection((where.host, where.port), timeout=timeout_s).close()
    except ConnectionRefusedError:
        return "not started"
    except TimeoutError:
        return "does not answer (a firewall, or the machine is down)"
    except OSError as error:
        return f"cannot be reached ({error.strerror or error})"
    return "listens"


def _together(calls: Mapping[str, Callable[[], str]], timeout_s: float) -> dict[str, str]:
    """Makes calls at the same time. Nobody can interrupt a name service that does not answer, so its thread stays."""
    answers: dict[str, str] = {}

    def answer(name: str, call: Callable[[], str]) -> None:
        answers[name] = call()

    threads = [threading.Thread(target=answer, args=each, daemon=True) for each in calls.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout_s)
    return {name: answers.get(name, "no answer in time") for name in calls}


def check_proxies(environ: Environ, config: ClusterConfig | None = None) -> Finding:
    """Checks that no proxy stands between the workers: JAX's coordination service talks gRPC, which obeys these."""
    lower: dict[str, str] = {name.lower(): value for name, value in environ.items() if value}
    proxies = [name for name in _PROXIES if name in lower]
    if not proxies:
        exceptions = ", ".join(name for name in environ if name.lower() in _NO_PROXIES)
        note = f" ({exceptions} alone does no harm, though JAX warns of it when a worker starts)" if exceptions else ""
        return ok("proxies", f"none{note}", proxies=[])
    hosts = sorted({host for host in _hosts(config) if not _bypasses(host, lower)})
    text = f"{', '.join(proxies)} set"
    if not hosts:
        return ok("proxies", f"{text}, but no_proxy leaves out all of the cluster's hosts", proxies=proxies)
    no_proxy = ",".join([*_exceptions(lower), *hosts])
    return warn(
        "proxies",
        f"{text}, also for {', '.join(hosts)}: workers may not find each other",
        f"export no_proxy={no_proxy}",
        proxies=proxies,
        hosts=hosts,
    )


def _hosts(config: ClusterConfig | None) -> list[str]:
    if config is None or not config.spec:
        return [LOOPBACK, "localhost"]
    return [parse_address(address, "address").host for _, address in _tasks(config)]


def _exceptions(variables: Mapping[str, str]) -> list[str]:
    told = next((variables[name] for name in _NO_PROXIES if name in variables), "")
    return [entry.strip() for entry in told.split(",") if entry.strip()]


def _bypasses(host: str, variables: Mapping[str, str]) -> bool:
    """gRPC compares the ends of names."""
    return any(entry == "*" or host.endswith(entry.lstrip("*")) for entry in _exceptions(variables))
