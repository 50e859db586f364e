"""Training on the hosts of a network: who is who, and what it must come to."""

from __future__ import annotations

import functools
import json
import re
import signal
from collections.abc import Sequence
from typing import Any

import numpy as np

import replicax as rx
from tests.hosts.host import Host, Process
from tests.hosts.jobs import descend
from tests.hosts.lan import Lan

PORT = 2222
ENVIRONMENT = {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1", "NPROC": "2"}
SECONDS = 120.0  # for anything that ends well; the machine may be busy


def by_ip(lan: Lan) -> list[str]:
    """Returns the addresses of the hosts' tasks, written with IP addresses."""
    return [f"[{ip}]:{PORT}" if ":" in ip else f"{ip}:{PORT}" for ip in lan.addresses]


def by_name(lan: Lan) -> list[str]:
    """Returns the addresses of the hosts' tasks, written with the hosts' names."""
    return [f"{host.name}:{PORT}" for host in lan.hosts]


def tf_config(addresses: Sequence[str], index: int) -> dict[str, str]:
    """Returns the environment of a worker of several."""
    task = {"type": "worker", "index": index}
    return {"TF_CONFIG": json.dumps({"cluster": {"worker": list(addresses)}, "task": task})}


def jax_variables(addresses: Sequence[str], index: int) -> dict[str, str]:
    """Returns the environment of a worker that is told the first one's address only."""
    numbers = {"JAX_NUM_PROCESSES": str(len(addresses)), "JAX_PROCESS_ID": str(index)}
    return {"JAX_COORDINATOR_ADDRESS": addresses[0], **numbers}


def start_job(host: Host, name: str, environment: dict[str, str], **arguments: Any) -> Process:
    """Starts one of `jobs.py` on a host."""
    command = ("python", "-m", "tests.hosts.jobs", name, json.dumps(arguments))
    return host.start(*command, **ENVIRONMENT, **environment)


def start_workers(lan: Lan, addresses: Sequence[str], describe: Any = tf_config, **arguments: Any) -> list[Process]:
    """Starts one worker on each host."""
    return [start_job(host, "workers", describe(addresses, index), **arguments) for index, host in enumerate(lan.hosts)]


def check_trained(workers: Sequence[Process], steps: int) -> None:
    """All workers have ended well, with the weights of one device."""
    for worker in workers:
        assert worker.wait(SECONDS) == 0, worker.log
        found = re.search(r"^weights (.*)$", worker.log, re.MULTILINE)
        assert found, worker.log
        np.testing.assert_allclose(json.loads(found[1]), on_one_device(steps), rtol=1e-5)


@functools.cache
def on_one_device(steps: int) -> Any:
    """Returns the weights that the same training has on one device."""
    return np.asarray(descend(rx.OneDeviceStrategy("cpu:0"), steps))


def end(processes: Sequence[Process]) -> None:
    """Ends what runs."""
    for process in processes:
        process.signal(signal.SIGKILL)
