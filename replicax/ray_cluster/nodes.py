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
from replicax.cluster.own_address import is_mine, own_ip, resolve
from replicax.compat import ray_node
from replicax.compat.systems import check_system
from replicax.errors import ClusterError
from replicax.ray_cluster.deadline import PATIENCE
from replicax.ray_cluster.folder import Folder
from replicax.ray_cluster.memory import object_store_memory
from replicax.ray_cluster.ray_environment import QUIET, import_ray
from replicax.ray_cluster.tasks import ROOM, SERVER, head_address, head_task, resource_name

_STARTED = "Ray runtime started."
_SECONDS_BETWEEN_LOOKS = 0.1
_LINES_TO_SHOW = 15
#: Ray's variable: for how many seconds a process goes on without the head; and what it is for our nodes.
HEAD_LIMIT_NAME, HEAD_LIMIT = "RAY_gcs_rpc_server_reconnect_timeout_s", "10"
SETTINGS = {
    **QUIET,
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",  # A parameter server must not see the workers' GPUs.
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",  # A machine that is switched off is missed after some five of these.
    HEAD_LIMIT_NAME: HEAD_LIMIT,  # A node whose head has gone ends after so long.
    "RAY_enable_metrics_collection": "0",  # Ray's pages of metrics answer anybody, without a token.
}


def task_arguments(spec: ClusterSpec, task: Task, dashboard: bool) -> list[str]:
    """Returns the arguments of `ray start` for a task: the first that serves hosts the head at its own port."""
    port = str(parse_address(spec.task_address(task.type, task.index), "address").port)
    room = {} if SERVER in spec.jobs else {ROOM: 1}
    arguments = ["--resources", json.dumps({resource_name(task): 1, **room})]
    arguments += ["--object-store-memory", str(object_store_memory())]
    if task == head_task(spec):
        return ["--head", "--port", port, "--include-dashboard", str(dashboard).lower(), *arguments]
    return [
        "--address",
        _head(spec),
        "--node-manager-port",
        port,
        *arguments,
    ]


def _head(spec: ClusterSpec) -> str:
    return join_address(head_ip(spec), parse_address(head_address(spec), "address").port)


def visitor_arguments(spec: ClusterSpec) -> list[str]:
    """Returns the arguments for the node of a coordinator on a machine of its own: nothing else may run there."""
    return ["--address", _head(spec), "--num-cpus", "0", "--num-gpus", "0", "--include-log-monitor", "false"]


def node_ip(spec: ClusterSpec, task: Task, timeout_s: float) -> str:
    """Returns this machine's IP address at which the node of a task listens; names may take `timeout_s` to resolve."""
    if not spec.has_task(task.type, task.index):  # The cluster need not name the coordinator.
        return own_ip(str(task), "", [head_address(spec)], timeout_s)
    address = spec.task_address(task.type, task.index)
    tasks = [Task(job, index) for job in spec.jobs for index in spec.task_indices(job)]
    others = [spec.task_address(other.type, other.index) for other in tasks if other != task]
    return own_ip(str(task), address, others, timeout_s)


def head_ip(spec: ClusterSpec) -> str:
    """Returns the IP address of the head's host, the one that it listens at if this is that host."""
    host = parse_address(head_address(spec), "address").host
    ip = next(iter(resolve(host)), host)
    return node_ip(spec, head_task(spec), 0.0) if is_mine(ip) else ip


def answers(address: str) -> bool:
    """Whether somebody listens at `"host:port"`."""
    return _failure(address) is None


def refuses(address: str) -> bool:
    """Whether the machine of `"host:port"` is there, and nobody listens at the port."""
    return isinstance(_failure(address), ConnectionRefusedError)


def _failure(address: str) -> OSError | None:
    host, port = parse_address(address, "address")
    try:
        socket.create_connection((host, port), timeout=2 * PATIENCE.again).close()
    except OSError as error:
        return error
    return None


class Node:
    """A Ray node that runs until it is stopped, or its starter ends in any way."""

    def __init__(self, name: str, arguments: list[str], ip: str, token: Mapping[str, str], timeout_s: float):
        check_system()
        import_ray()
        self._name = name
        self.folder = Folder()
        self._log = Path(self.folder.root) / "start.out"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    ray_node.__file__,
                    str(timeout_s),
                    ip,
                    *arguments,
                    "--temp-dir",
                    self.folder.path,
                ],
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
        """Returns whether the node is still running."""
        return self._process.poll() is None

    def stop(self) -> None:
        """Ends the node and whatever runs on it."""
        if self.is_running():
            self._process.send_signal(signal.SIGTERM)  # It tells the head that it leaves.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(PATIENCE.end)
        self.folder.close()
        self._process.kill()  # Where the environment of processes cannot be read, at least this one is killed.
        self._process.wait()

    def _wait_for_start(self, deadline: float) -> None:
        while _STARTED not in self._log.read_text(errors="replace", encoding="utf-8"):
            if not self.is_running() or time.monotonic() >= deadline:
                ended = "has ended at once" if not self.is_running() else "is not up in time"
                words = "\n".join(
                    self._log.read_text(errors="replace", encoding="utf-8").splitlines()[-_LINES_TO_SHOW:]
                )
                raise ClusterError(f"The Ray node of {self._name}", None, ended, f"Its last output:\n{words}")
            time.sleep(_SECONDS_BETWEEN_LOOKS)
