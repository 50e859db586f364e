"""Clients: the processes that together run one program over the devices of all of them.

Each client runs the same program. The environment tells it who it is (see `client_settings`), and JAX's
coordination service (`jax.distributed`) connects them. This module keeps no state: JAX knows whether the clients are
connected.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping

import jax

from replicax.checks import checked_seconds, is_int
from replicax.cluster.own_address import own_ip
from replicax.cluster.runtime import connect
from replicax.compat.jax_processes import backends_have_started
from replicax.config import set_virtual_devices
from replicax.contracts.called_as import called_as
from replicax.errors import ArgumentError, ContextError, DeviceError

_DEVICE_TYPES = ("tpu", "gpu", "cpu")  # best first
_SECONDS_BETWEEN_SIGNS_OF_LIFE = {True: 100, False: 10 * 365 * 24 * 60 * 60}


# Clients and their numbers.


def client_id() -> int:
    """Returns the id of this client: what JAX says once clients are connected, otherwise `DTENSOR_CLIENT_ID` or 0.

    Raises:
        ArgumentError: The environment is malformed (see `client_settings`), also in the functions below.

    Example:
        >>> rx.dtensor.client_id()
        0
    """
    return jax.process_index() if jax.distributed.is_initialized() else client_settings(os.environ).client_id


def num_clients() -> int:
    """Returns the number of clients: JAX's once clients are connected, otherwise the length of `DTENSOR_JOBS`.

    Example:
        >>> rx.dtensor.num_clients()
        1
    """
    return jax.process_count() if jax.distributed.is_initialized() else client_settings(os.environ).num_clients


def jobs() -> list[str]:
    """Returns the addresses in `DTENSOR_JOBS`; an empty list if it is not set.

    Example:
        >>> rx.dtensor.jobs()
        []
    """
    return list(client_settings(os.environ).jobs)


def job_name() -> str:
    """Returns `DTENSOR_JOB_NAME`; by default `"localhost"` for one client, `"worker"` for several.

    Example:
        >>> rx.dtensor.job_name()
        'localhost'
    """
    return client_settings(os.environ).job_name or ("localhost" if num_clients() == 1 else "worker")


def full_job_name(task_id: int | None = None) -> str:
    """Returns the name of a client as TensorFlow writes it, such as `"worker/replica:0/task:1"`.

    Args:
        task_id: Id of the client; by default this one's.

    Raises:
        ArgumentError: There is no such client.

    Example:
        >>> rx.dtensor.full_job_name()
        'localhost/replica:0/task:0'
    """
    task = client_id() if task_id is None else task_id
    _check_client(task, num_clients())
    return f"{job_name()}/replica:0/task:{task}"


def heartbeat_enabled() -> bool:
    """Returns whether clients watch each other (`DTENSOR_ENABLE_HEARTBEAT`, on by default).

    If they do and one of them dies, all others end within about 100 s; otherwise they wait for it until their
    deadlines.

    Example:
        >>> rx.dtensor.heartbeat_enabled()
        True
    """
    return client_settings(os.environ).heartbeat


def _check_client(client: int, clients: int) -> None:
    if not is_int(client) or not 0 <= client < clients:
        raise ArgumentError(f"The ids of clients are 0 to {clients - 1}, got {client!r}.")


# Devices.


def local_devices(device_type: str, for_client_id: int | None = None) -> list[jax.Device]:
    """Returns the devices of a client; an empty list if it has none of that type.

    Args:
        device_type: `"cpu"`, `"gpu"` or `"tpu"`.
        for_client_id: Id of the client; by default this one's.

    Raises:
        DeviceError: `device_type` is none of those.
        ArgumentError: There is no such client.

    Example:
        >>> len(rx.dtensor.local_devices("cpu"))
        8
    """
    devices = global_devices(device_type)
    client = jax.process_index() if for_client_id is None else for_client_id
    _check_client(client, jax.process_count())
    return [device for device in devices if device.process_index == client]


def num_local_devices(device_type: str) -> int:
    """Returns the number of devices of this client; see `local_devices`.

    Example:
        >>> rx.dtensor.num_local_devices("cpu")
        8
    """
    return len(local_devices(device_type))


def num_global_devices(device_type: str) -> int:
    """Returns the number of devices of all clients.

    Raises:
        DeviceError: `device_type` is none of `"cpu"`, `"gpu"`, `"tpu"`.

    Example:
        >>> rx.dtensor.num_global_devices("cpu")
        8
    """
    return len(global_devices(device_type))


def preferred_device_type() -> str:
    """Returns the best type of device that exists here: `"tpu"` over `"gpu"` over `"cpu"`.

    Example:
        >>> rx.dtensor.preferred_device_type()
        'cpu'
    """
    return next(device_type for device_type in _DEVICE_TYPES if global_devices(device_type))


def global_devices(device_type: str) -> list[jax.Device]:
    """Returns the devices of all clients; an empty list if there are none of that type."""
    if not isinstance(device_type, str) or device_type.lower() not in _DEVICE_TYPES:
        raise DeviceError(f"A type of device is one of {sorted(_DEVICE_TYPES)}, got {device_type!r}.")
    try:
        return jax.devices(device_type.lower())
    except RuntimeError:  # JAX has no such platform here.
        return []


# Start and end.


@called_as("tf.experimental.dtensor.initialize_accelerator_system")
def initialize_accelerator_system(
    device_type: str | None = None, *, num_logical_cpu_devices: int | None = None, timeout_s: float = 300.0
) -> str:
    """Starts the devices, and connects this client with the others if `DTENSOR_JOBS` names several.

    Call it at the top of the program, before anything creates an array or asks for devices. With several clients it
    returns when all have called it. A program with one client need not call it, and may call it more than once.

    Args:
        device_type: `"cpu"`, `"gpu"` or `"tpu"`; by default the best that exists here.
        num_logical_cpu_devices: Number of virtual CPU devices to create, as `rx.config.set_virtual_devices` does.
        timeout_s: How long to wait for the other clients, in seconds.

    Returns:
        The type of device, in small letters.

    Raises:
        ContextError: The clients are connected already, or JAX has already started, or cannot connect.
        ClusterTimeoutError: Not all clients came in time; it says which.
        DeviceError: There is no device of that type, or virtual ones cannot be made any more.
        ArgumentError: The environment is malformed.
        ClusterError: This client does not fit the others, a client cannot listen at its address, or cannot connect with
            another one.

    Example:
        >>> rx.dtensor.initialize_accelerator_system("cpu")
        'cpu'
    """
    settings = client_settings(os.environ)
    timeout_s = checked_seconds("timeout_s", timeout_s)
    if jax.distributed.is_initialized():
        raise ContextError(
            "The clients are connected already. Call initialize_accelerator_system once, or "
            "shutdown_accelerator_system first."
        )
    if settings.num_clients > 1 and backends_have_started():
        raise ContextError(
            "JAX has already looked for devices in this process, so it cannot join other clients any more. Call "
            "initialize_accelerator_system at the top of the program, before anything creates an array or asks for "
            "devices. (After shutdown_accelerator_system: in a new process.)"
        )
    if num_logical_cpu_devices is not None:
        set_virtual_devices(num_logical_cpu_devices)
    if settings.num_clients > 1:
        names = [f"client {i} at {job}" for i, job in enumerate(settings.jobs)]
        heartbeat_s = _SECONDS_BETWEEN_SIGNS_OF_LIFE[settings.heartbeat]
        others = [job for i, job in enumerate(settings.jobs) if i != settings.client_id]
        ip = own_ip(f"client {settings.client_id}", settings.jobs[settings.client_id], others, timeout_s)
        connect(settings.jobs[0], settings.client_id, names, {}, timeout_s, heartbeat_s, ip)
    found = preferred_device_type() if device_type is None else device_type
    if not local_devices(found):
        raise DeviceError(f"There are no devices of type {device_type!r} here; JAX has found {jax.local_devices()}.")
    return found.lower()


def shutdown_accelerator_system() -> None:
    """Disconnects the clients, after all have called it. With one client it does nothing.

    A process cannot connect a second time, because JAX cannot start its devices again.

    Raises:
        ContextError: `DTENSOR_JOBS` names several clients, and they are not connected.

    Example:
        >>> rx.dtensor.shutdown_accelerator_system()
    """
    if jax.distributed.is_initialized():
        jax.distributed.shutdown()
    else:
        check_connected("shutdown_accelerator_system")


def check_connected(caller: str) -> None:
    """Checks that the clients are connected, if there are several."""
    settings = client_settings(os.environ)
    if settings.num_clients > 1 and not jax.distributed.is_initialized():
        raise ContextError(
            f"{caller}: {_JOBS} names {settings.num_clients} clients, but they are not connected. Call "
            "initialize_accelerator_system at the top of the program."
        )


# The environment variables that tell each client its id.


_JOBS = "DTENSOR_JOBS"
_CLIENT_ID, _JOB_NAME, _HEARTBEAT = "DTENSOR_CLIENT_ID", "DTENSOR_JOB_NAME", "DTENSOR_ENABLE_HEARTBEAT"
_SWITCH = {"true": True, "1": True, "false": False, "0": False}


@dataclasses.dataclass(frozen=True)
class ClientSettings:
    """The clients, as the environment describes them."""

    jobs: tuple[str, ...] = ()  # "host:port" of each client, which meet at the first; empty for one client
    client_id: int = 0  # of this process, a position in `jobs`
    job_name: str | None = None
    heartbeat: bool = True  # whether clients watch each other

    @property
    def num_clients(self) -> int:
        """Number of clients, 1 if no jobs are named."""
        return max(1, len(self.jobs))


def client_settings(environment: Mapping[str, str]) -> ClientSettings:
    """Reads the settings of the clients from an environment; a variable that is empty counts as not set."""
    jobs = tuple(job.strip() for job in environment[_JOBS].split(",")) if environment.get(_JOBS) else ()
    _check_jobs(jobs)
    heartbeat = environment.get(_HEARTBEAT) or "true"
    if heartbeat.lower() not in _SWITCH:
        raise ArgumentError(f"{_HEARTBEAT} must be one of {[*_SWITCH]}, got {heartbeat!r}.")
    return ClientSettings(
        jobs,
        _client_id(environment.get(_CLIENT_ID) or "0", max(1, len(jobs))),
        environment.get(_JOB_NAME) or None,
        _SWITCH[heartbeat.lower()],
    )


def _check_jobs(jobs: tuple[str, ...]) -> None:
    form = "Write 'host:port' for each client, separated by commas, such as '10.0.0.1:9898,10.0.0.2:9898'."
    for job in jobs:
        if not job:
            raise ArgumentError(f"{_JOBS} has an empty entry: {','.join(jobs)!r}. {form}")
        host, _, port = job.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise ArgumentError(f"{_JOBS} has an entry without a host or port: {job!r}. {form}")
        if ":" in host and not (host.startswith("[") and host.endswith("]")):
            raise ArgumentError(f"{_JOBS} has an IPv6 address without brackets: {job!r}. Write '[address]:port'.")
    repeated = sorted({job for job in jobs if jobs.count(job) > 1})
    if repeated:
        raise ArgumentError(f"{_JOBS} names {repeated[0]!r} more than once. Each client has an address of its own.")


def _client_id(text: str, num_clients: int) -> int:
    client = int(text) if re.fullmatch(r"\s*-?\d+\s*", text) else -1
    if not 0 <= client < num_clients:
        raise ArgumentError(
            f"{_CLIENT_ID} must be an int from 0 to {num_clients - 1}, as {_JOBS} names {num_clients} client(s) (none: "
            f"one), got {text!r}. The ids follow the order of {_JOBS}."
        )
    return client
