"""A Ray node as a process of its own: for a task of the cluster, or for a coordinator on a machine without one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from replicax.cluster import ClusterSpec, Task, parse_address
from replicax.cluster.addresses import join_address
from replicax.errors import ClusterError
from replicax.parameter_server.cluster import node_process
from replicax.parameter_server.cluster.folder import Folder
from replicax.parameter_server.cluster.memory import object_store_memory
from replicax.parameter_server.cluster.ray_environment import QUIET, import_ray
from replicax.parameter_server.cluster.tasks import head_address, resource_name

_STARTED = "Ray runtime started."
_SECONDS_BETWEEN_LOOKS = 0.1
_SECONDS_TO_STOP = 5.0
_LINES_TO_SHOW = 15
SETTINGS = {
    **QUIET,
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",  # A parameter server must not see the workers' GPUs.
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",  # A machine that is switched off is missed after some five of these.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "10",  # A node whose head has gone ends after so long.
}


def task_arguments(spec: ClusterSpec, task: Task, dashboard: bool) -> list[str]:
    """Returns the arguments of `ray start` for a task: the first parameter server hosts the head at its own port."""
    head = parse_address(head_address(spec), "address")
    port = str(parse_address(spec.task_address(task.type, task.index), "address").port)
    arguments = ["--resources", json.dumps({resource_name(task): 1})]
    arguments += ["--object-store-memory", str(object_store_memory())]
    if (task.type, task.index) == ("ps", 0):
        return ["--head", "--port", port, "--include-dashboard", str(dashboard).lower(), *arguments]
    return [
        "--address",
        join_address(to_ip(head.host) or head.host, head.port),
        "--node-manager-port",
        port,
        *arguments,
    ]


def visitor_arguments(spec: ClusterSpec) -> list[str]:
    """Returns the arguments for the node of a coordinator on a machine of its own: nothing else may run there."""
    head = parse_address(head_address(spec), "address")
    address = join_address(to_ip(head.host) or head.host, head.port)
    return ["--address", address, "--num-cpus", "0", "--num-gpus", "0", "--include-log-monitor", "false"]


def to_ip(host: str) -> str | None:
    """Returns the IP address of a host, or None if nobody knows it."""
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return None


def own_ip(host: str) -> str:
    """Returns the IP address of a host of the cluster if it is this machine and others can use it; else `""`.

    A name may stand for a loopback address on its own machine (Debian's 127.0.1.1), or for a service in front of it.
    Then Ray finds the address by itself.
    """
    ip = to_ip(host)
    if ip is None or not is_mine(ip):
        return ""
    named_so = parse_address(join_address(host, 1), "address").is_loopback()
    return ip if named_so or not parse_address(join_address(ip, 1), "address").is_loopback() else ""


def is_mine(ip: str) -> bool:
    """Whether an IP address is one of this machine."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET) as probe:
            probe.bind((ip, 0))
    except OSError:
        return False
    return True


def answers(address: str) -> bool:
    """Whether somebody listens at `"host:port"`."""
    host, port = parse_address(address, "address")
    try:
        socket.create_connection((host, port), timeout=2).close()
    except OSError:
        return False
    return True


class Node:
    """A Ray node that runs until it is stopped, or its starter ends in any way.

    Args:
        name: What to call it in messages.
        arguments: Those of `ray start`.
        ip: Its address; empty leaves the choice to Ray.
        token: Ray's variables for the cluster's secret.
        timeout_s: How long its start may take, in seconds.

    Raises:
        ClusterError: Ray is not installed, or cannot start it.
    """

    def __init__(self, name: str, arguments: list[str], ip: str, token: Mapping[str, str], timeout_s: float):
        import_ray()
        self._name = name
        self.folder = Folder()
        self._log = Path(self.folder.path) / "start.out"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", node_process.__file__, ip, *arguments, "--temp-dir", self.folder.path],
                env={**SETTINGS, **os.environ, **token, **self.folder.environment, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self._wait_for_start(time.monotonic() + timeout_s)
        except BaseException:
            self.stop()
            raise

    def is_running(self) -> bool:
        """Whether it has not ended by itself."""
        return self._process.poll() is None

    def stop(self) -> None:
        """Ends it, and whatever runs on it."""
        if self.is_running():
            self._process.send_signal(signal.SIGTERM)  # It tells the head that it leaves.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_SECONDS_TO_STOP)
        self.folder.close()
        self._process.kill()  # Where processes cannot be told by their environment, at least this one.
        self._process.wait()

    def _wait_for_start(self, deadline: float) -> None:
        while _STARTED not in self._log.read_text(errors="replace"):
            if not self.is_running() or time.monotonic() >= deadline:
                ended = "has ended at once" if not self.is_running() else "is not up in time"
                words = "\n".join(self._log.read_text(errors="replace").splitlines()[-_LINES_TO_SHOW:])
                raise ClusterError(f"The Ray node of {self._name}", None, ended, f"What it said last:\n{words}")
            time.sleep(_SECONDS_BETWEEN_LOOKS)
