"""Clients: the processes that together run one program over the devices of all of them.

Each client runs the same program. The environment tells it who it is (see `client_settings`), and JAX's coordination
service (`jax.distributed`) connects them. Nothing is remembered here: whether clients are connected, JAX knows.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax.compat import backends_have_started, wait_at_barrier
from replicax.config import set_virtual_devices
from replicax.dtensor.layout import Layout
from replicax.dtensor.mesh import Mesh, MeshDims, create_mesh
from replicax.dtensor.placement import is_tracing
from replicax.dtensor.rendezvous import meet, split_address
from replicax.errors import ArgumentError, BarrierTimeoutError, ContextError, DeviceError, MeshError, ProgramError
from replicax.runtime.devices import parse_devices

_JOBS, _CLIENT_ID, _JOB_NAME = "DTENSOR_JOBS", "DTENSOR_CLIENT_ID", "DTENSOR_JOB_NAME"
_HEARTBEAT = "DTENSOR_ENABLE_HEARTBEAT"
_SWITCH = {"true": True, "1": True, "false": False, "0": False}
_DEVICE_TYPES = ("tpu", "gpu", "cpu")  # best first
_DAY_IN_MS = 24 * 60 * 60 * 1000
_SECONDS_TO_CONNECT = 60  # for JAX, once all clients are there
_SECONDS_BETWEEN_SIGNS_OF_LIFE = {True: 100, False: 10 * 365 * 24 * 60 * 60}


@dataclasses.dataclass(frozen=True)
class ClientSettings:
    """What the environment says about the clients.

    Attributes:
        jobs: Address `"host:port"` of each client; empty for a program of one client.
        client_id: Which of them this process is.
        job_name: Name of the job for `full_job_name`; None if the environment gives none.
        heartbeat: Whether clients watch each other.
    """

    jobs: tuple[str, ...] = ()
    client_id: int = 0
    job_name: str | None = None
    heartbeat: bool = True

    @property
    def num_clients(self) -> int:
        """Number of clients, 1 if no jobs are named."""
        return max(1, len(self.jobs))


def client_settings(environment: Mapping[str, str]) -> ClientSettings:
    """Reads the settings of the clients.

    Args:
        environment: Such as `os.environ`. A variable that is empty counts as not set.
            `DTENSOR_JOBS`: comma-separated `host:port`, one for each client; at the first one clients meet.
            `DTENSOR_CLIENT_ID`: which of them this process is; by default 0.
            `DTENSOR_JOB_NAME`: name of the job.
            `DTENSOR_ENABLE_HEARTBEAT`: `true` (the default) or `false`.

    Raises:
        ArgumentError: A value is not of that form.
    """
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
            f"one), got {text!r}. Number the clients in the order of {_JOBS}."
        )
    return client


# Who is who.


def client_id() -> int:
    """Returns the number of this client: what JAX says once clients are connected, else `DTENSOR_CLIENT_ID` or 0.

    Raises:
        ArgumentError: The environment is malformed (see `client_settings`), also in the functions below.
    """
    return jax.process_index() if jax.distributed.is_initialized() else client_settings(os.environ).client_id


def num_clients() -> int:
    """Returns the number of clients: what JAX says once clients are connected, else the length of `DTENSOR_JOBS`."""
    return jax.process_count() if jax.distributed.is_initialized() else client_settings(os.environ).num_clients


def jobs() -> list[str]:
    """Returns the addresses in `DTENSOR_JOBS`; an empty list if it is not set."""
    return list(client_settings(os.environ).jobs)


def job_name() -> str:
    """Returns `DTENSOR_JOB_NAME`; by default `"localhost"` for one client, `"worker"` for several."""
    return client_settings(os.environ).job_name or ("localhost" if num_clients() == 1 else "worker")


def full_job_name(task_id: int | None = None) -> str:
    """Returns the name of a client as TensorFlow writes it, such as `"worker/replica:0/task:1"`.

    Args:
        task_id: Number of the client; by default this one's.

    Raises:
        ArgumentError: There is no such client.
    """
    task = client_id() if task_id is None else task_id
    _check_client(task, num_clients())
    return f"{job_name()}/replica:0/task:{task}"


def heartbeat_enabled() -> bool:
    """Returns whether clients watch each other (`DTENSOR_ENABLE_HEARTBEAT`, on by default).

    If they do, all end within about 100 s when one of them dies; else they wait for it until their own deadlines.
    """
    return client_settings(os.environ).heartbeat


def _check_client(client: int, clients: int) -> None:
    if isinstance(client, bool) or not isinstance(client, int) or not 0 <= client < clients:
        raise ArgumentError(f"Clients have the numbers 0 to {clients - 1}, got {client!r}.")


# Devices.


def local_devices(device_type: str, for_client_id: int | None = None) -> list[jax.Device]:
    """Returns the devices of a client; an empty list if it has none of that type.

    Args:
        device_type: `"cpu"`, `"gpu"` or `"tpu"`.
        for_client_id: Number of the client; by default this one.

    Raises:
        DeviceError: `device_type` is none of those.
        ArgumentError: There is no such client.
    """
    devices = _global_devices(device_type)
    client = jax.process_index() if for_client_id is None else for_client_id
    _check_client(client, jax.process_count())
    return [device for device in devices if device.process_index == client]


def num_local_devices(device_type: str) -> int:
    """Returns the number of devices of this client; see `local_devices`."""
    return len(local_devices(device_type))


def num_global_devices(device_type: str) -> int:
    """Returns the number of devices of all clients.

    Raises:
        DeviceError: `device_type` is none of `"cpu"`, `"gpu"`, `"tpu"`.
    """
    return len(_global_devices(device_type))


def preferred_device_type() -> str:
    """Returns the best type of device that there is: `"tpu"` over `"gpu"` over `"cpu"`."""
    return next(device_type for device_type in _DEVICE_TYPES if _global_devices(device_type))


def _global_devices(device_type: str) -> list[jax.Device]:
    if not isinstance(device_type, str) or device_type.lower() not in _DEVICE_TYPES:
        raise DeviceError(f"A type of device is one of {sorted(_DEVICE_TYPES)}, got {device_type!r}.")
    try:
        return jax.devices(device_type.lower())
    except RuntimeError:  # JAX has no such platform here.
        return []


# Start and end.


def initialize_accelerator_system(
    device_type: str | None = None, num_logical_cpu_devices: int | None = None, timeout_s: float = 300.0
) -> str:
    """Starts the devices, and connects this client with the others if `DTENSOR_JOBS` names several.

    Call it at the top of the program, before anything creates an array or asks for devices. With several clients it
    returns when all have called it. A program of one client need not call it, and may call it again.

    Args:
        device_type: `"cpu"`, `"gpu"` or `"tpu"`; by default the best there is.
        num_logical_cpu_devices: How many virtual CPU devices to make, as `rx.config.set_virtual_devices` does.
        timeout_s: How long to wait for the other clients, in seconds.

    Returns:
        The type of device, in small letters.

    Raises:
        ContextError: The clients are connected already, or JAX has already started, or cannot connect.
        ClientsTimeoutError: Not all clients came in time; it says which.
        DeviceError: There is no device of that type, or virtual ones cannot be made any more.
        ArgumentError: The environment is malformed, or does not fit that of the other clients.
    """
    settings = client_settings(os.environ)
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)) or not 0 < timeout_s < math.inf:
        raise ArgumentError(f"`timeout_s` is a positive number of seconds, got {timeout_s!r}.")
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
        _connect(settings, timeout_s)
    found = preferred_device_type() if device_type is None else device_type
    if not local_devices(found):
        raise DeviceError(f"There are no devices of type {device_type!r} here; JAX has found {jax.local_devices()}.")
    return found.lower()


def _connect(settings: ClientSettings, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    meet(settings.jobs[0], settings.client_id, settings.num_clients, timeout_s)
    try:
        jax.distributed.initialize(
            coordinator_address=settings.jobs[0],
            num_processes=settings.num_clients,
            process_id=settings.client_id,
            initialization_timeout=max(_SECONDS_TO_CONNECT, math.ceil(deadline - time.monotonic())),
            heartbeat_timeout_seconds=_SECONDS_BETWEEN_SIGNS_OF_LIFE[settings.heartbeat],
        )
    except RuntimeError as error:
        host, port = split_address(settings.jobs[0])
        raise ContextError(
            f"JAX could not connect client {settings.client_id} of {settings.num_clients} with the coordination "
            f"service of client 0, on port {port} of {host}: {error}"
        ) from error


def shutdown_accelerator_system() -> None:
    """Disconnects the clients; waits until all have called it. Without other clients it does nothing.

    A process cannot connect a second time, because JAX cannot start its devices again.

    Raises:
        ContextError: `DTENSOR_JOBS` names several clients, and they are not connected.
    """
    if jax.distributed.is_initialized():
        jax.distributed.shutdown()
    else:
        _check_connected("shutdown_accelerator_system")


def _check_connected(caller: str) -> None:
    settings = client_settings(os.environ)
    if settings.num_clients > 1 and not jax.distributed.is_initialized():
        raise ContextError(
            f"{caller}: {_JOBS} names {settings.num_clients} clients, but they are not connected. Call "
            "initialize_accelerator_system at the top of the program."
        )


def create_distributed_mesh(
    mesh_dims: MeshDims,
    mesh_name: str = "",
    local_devices: Sequence[str | jax.Device] | None = None,
    device_type: str | None = None,
) -> Mesh:
    """Makes a mesh of the devices of all clients.

    In row-major order of the dimensions, the first devices are client 0's, the next ones client 1's, and so on. With
    one client it is `create_mesh`.

    Args:
        mesh_dims: Pairs of a name and a size, or a dict of them; see `create_mesh`.
        mesh_name: A label.
        local_devices: Which devices each client gives, such as `["cpu:0", "cpu:1"]`; by default all of `device_type`.
            Every client must name the same ones.
        device_type: `"cpu"`, `"gpu"` or `"tpu"`; by default that of `local_devices`, or the best there is.

    Raises:
        ContextError: `DTENSOR_JOBS` names several clients, and they are not connected yet.
        MeshError: The sizes do not multiply to the number of devices, or a dimension is not well-formed.
        DeviceError: A device does not exist, here or in another client, or is not of `device_type`.
    """
    _check_connected("create_distributed_mesh")
    if local_devices is None:
        devices = _global_devices(preferred_device_type() if device_type is None else device_type)
        if not devices:
            raise DeviceError(f"No client has a device of type {device_type!r}; this one has {jax.local_devices()}.")
    else:
        devices = [peer for device in parse_devices(local_devices) for peer in _named_everywhere(device)]
    by_client = sorted(devices, key=lambda device: device.process_index)  # Stable: each client's keep their order.
    return create_mesh(mesh_dims, mesh_name, by_client, device_type)


def _named_everywhere(device: jax.Device) -> list[jax.Device]:
    """Returns what a device of this client is called in each client: the one of the same position there."""
    mine = local_devices(device.platform)
    if device not in mine:
        raise DeviceError(f"`local_devices` are this client's own, but {device} is not. This client has: {mine}.")
    position = mine.index(device)
    found = []
    for client in range(jax.process_count()):
        theirs = local_devices(device.platform, client)
        if position >= len(theirs):
            raise DeviceError(f"Client {client} has no device {device.platform}:{position}, only {theirs}.")
        found.append(theirs[position])
    return found


# Waiting for each other.


def barrier(mesh: Any, barrier_name: str | None = None, timeout_in_ms: int | None = None) -> None:
    """Returns when all clients of a mesh have called it and their devices have done what was asked of them before.

    Args:
        mesh: The mesh. Clients that have no device in it must not call.
        barrier_name: A name for messages; every client must give the same one. It may be used again.
        timeout_in_ms: How long to wait for the others, in milliseconds; by default a day. (JAX's coordination service
            looks about once a second.)

    Raises:
        BarrierTimeoutError: Not all came in time; it says who did not.
        MeshError: `mesh` is not a mesh, or this client has no device in it.
        DeviceError: The devices do not count up to the mesh's size: they do not work together.
        ArgumentError: The timeout is not a positive int, or the name not a string.
        ContextError: JAX's coordination service is gone.
        ProgramError: Called while a function is being traced.
    """
    mesh = Mesh.of(mesh)
    timeout_ms = _DAY_IN_MS if timeout_in_ms is None else timeout_in_ms
    name = "barrier" if barrier_name is None else barrier_name
    if isinstance(timeout_ms, bool) or not isinstance(timeout_ms, int) or timeout_ms < 1:
        raise ArgumentError(f"`timeout_in_ms` is a positive int, got {timeout_in_ms!r}.")
    if not isinstance(name, str):
        raise ArgumentError(f"`barrier_name` is a string, got {barrier_name!r}.")
    if is_tracing():
        raise ProgramError("barrier was called while a function was being traced: clients wait between programs.")
    if mesh.is_remote():
        raise MeshError(f"Process {jax.process_index()} has no device in {mesh!r}, so it has no part in its barrier.")
    processes = sorted({device.process_index for device in mesh.global_devices()})
    if len(processes) > 1:
        _wait(name, timeout_ms, processes)
    _check_count(mesh)


def _wait(name: str, timeout_ms: int, processes: Sequence[int]) -> None:
    everyone = len(processes) == jax.process_count()
    try:
        wait_at_barrier(f"replicax {name}" + ("" if everyone else f" of {processes}"), timeout_ms, processes)
    except jax.errors.JaxRuntimeError as error:
        problem, me = str(error), jax.process_index()
        missing = _missing(problem)
        # Who comes late is told of the timeout of those that waited, or that the barrier is past.
        if me in missing or "invoked by the task, but the service thinks it is" in problem:
            raise BarrierTimeoutError(name, timeout_ms, me, late=True) from error
        if problem.startswith("DEADLINE_EXCEEDED"):
            raise BarrierTimeoutError(name, timeout_ms, me, missing) from error
        raise ContextError(f"Waiting at barrier {name!r} failed: {problem}") from error


def _missing(problem: str) -> tuple[int, ...]:
    """Returns the numbers of the clients that the coordination service says it missed."""
    listed = re.search(r"timed out task names:\s*((?:\d+\s*?\n)+)", problem)
    return tuple(sorted(int(client) for client in listed[1].split())) if listed else ()


def _check_count(mesh: Mesh) -> None:
    ones = Layout([mesh.dim_names], mesh).to_sharding()
    each = jax.make_array_from_callback((mesh.size,), ones, lambda index: np.ones(1, np.int32))
    total = jax.jit(jnp.sum, out_shardings=Layout([], mesh).to_sharding())(each)
    counted = int(np.asarray(total.addressable_data(0)))
    if counted != mesh.size:
        raise DeviceError(f"{mesh!r} has {mesh.size} devices, but counting them on the devices gives {counted}.")
