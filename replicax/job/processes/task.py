"""The program of a task's process, and its environment. Nothing here starts anything."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from replicax.checks import environment_names
from replicax.checks.environment_names import PS_SERVERS, PS_WORKERS
from replicax.cluster.own_address import LOOPBACK

WORKER, EVALUATOR, CHIEF = "worker", "evaluator", "chief"
#: The types of tasks that train together.
WORKERS = (CHIEF, WORKER)
_THREADS_PER_DEVICE = 2

# If the starter itself runs in a cluster, its variables would contradict those of the new cluster.
_OF_ANOTHER_CLUSTER = (
    "TF_CONFIG",
    "JAX_COORDINATOR_ADDRESS",
    "JAX_COORDINATOR_BIND_ADDRESS",
    "JAX_COORDINATOR_PORT",
    "JAX_NUM_PROCESSES",
    "JAX_PROCESS_ID",
    environment_names.COORDINATOR,
    environment_names.NUM_PROCESSES,
    environment_names.PROCESS_ID,
    environment_names.MEETING,
    environment_names.LIFE,
    environment_names.ELASTIC,
    PS_WORKERS,
    PS_SERVERS,
)

# The cache holds small programs too: one is quick to compile, but a restart needs hundreds.
_CACHE_SETTINGS = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}


class Program(NamedTuple):
    """The program of a task's process."""

    kind: str  # "file" for a script, "module" as with `python -m`, "call" for a pickled call
    target: str  # the script, the module, or the descriptors of a call's two files, such as "3:4"
    arguments: tuple[str, ...] = ()
    files: tuple[int, ...] = ()  # descriptors that the process inherits


@dataclasses.dataclass(frozen=True)
class PlannedTask:
    """One process of the cluster."""

    type: str  # "worker", "evaluator", or "chief"
    index: int  # among those of its type
    port: int | None  # where it can listen; None if its environment says where, or if it listens nowhere
    environment: Mapping[str, str] = dataclasses.field(repr=False)  # All of it; it has the job's token.

    @property
    def name(self) -> str:
        """Its name in messages, such as `"worker 1"`."""
        return f"{self.type} {self.index}"

    @property
    def log_name(self) -> str:
        """The name of its log, such as `"worker-1.log"`."""
        return f"{self.type}-{self.index}.log"

    def with_environment(self, environment: Mapping[str, str]) -> PlannedTask:
        return dataclasses.replace(self, environment=environment)


def common_environment(inherited: Mapping[str, str], devices: int | None, token: str, attempt: int) -> dict[str, str]:
    """Returns the environment that all tasks of a machine share: its own with additions."""
    inherited = {name: value for name, value in inherited.items() if name not in _OF_ANOTHER_CLUSTER}
    defaults = {
        "KERAS_BACKEND": "jax",
        "JAX_COMPILATION_CACHE_DIR": str(cache_folder(inherited)),
        **_CACHE_SETTINGS,
    }
    counted = {} if devices is None else {"JAX_NUM_CPU_DEVICES": str(devices)}
    told = inherited.get("JAX_NUM_CPU_DEVICES", "")
    return {
        **defaults,
        **inherited,
        **_past_proxies(inherited),
        **counted,
        "NPROC": str(_threads(devices or (int(told) if told.isdecimal() else 1), inherited.get("NPROC", ""))),
        "PYTHONUNBUFFERED": "1",
        environment_names.TOKEN: token,
        environment_names.ATTEMPT: str(attempt),
        environment_names.LAUNCHER_PID: str(os.getpid()),
    }


def _past_proxies(inherited: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables with which gRPC uses no proxy to reach this machine."""
    names = {name.lower() for name, value in inherited.items() if value}
    if not names & {"grpc_proxy", "https_proxy", "http_proxy", "all_proxy"}:
        return {}  # Not needed, and JAX would warn of the variable.
    return {"no_proxy": ",".join(filter(None, [inherited.get("no_proxy"), LOOPBACK]))}


def jax_environment(workers: Sequence[str], index: int) -> dict[str, str]:
    """Returns JAX's variables for the worker with a number, of workers with these addresses."""
    return {
        "JAX_COORDINATOR_ADDRESS": workers[0],
        "JAX_COORDINATOR_BIND_ADDRESS": workers[0],  # JAX would listen on all interfaces.
        "JAX_NUM_PROCESSES": str(len(workers)),
        "JAX_PROCESS_ID": str(index),
    }


def _threads(devices: int, previous: str) -> int:
    """Returns the size of XLA's thread pool: with fewer than two threads per device, collectives can deadlock."""
    return max(_THREADS_PER_DEVICE * devices, os.cpu_count() or 1, int(previous) if previous.isdecimal() else 1)


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Returns the folder of compiled programs that all jobs of this user share."""
    home = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME") or "~").expanduser() / ".cache"
    return Path(home) / "replicax" / "compiled"
