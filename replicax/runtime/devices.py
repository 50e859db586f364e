"""Devices: their names, how they are found, and virtual ones on a CPU."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import jax

from replicax.checks import is_int
from replicax.errors import DeviceError

# "cpu:0", "/gpu:1", "GPU:0", "/device:TPU:3", "/job:localhost/replica:0/task:0/device:GPU:1"
_DEVICE = re.compile(
    r"^(?:/job:localhost)?(?:/replica:\d+)?(?:/task:\d+)?/?(?:device:)?(?P<platform>[a-z]+)(?::(?P<index>\d+))?$",
    re.IGNORECASE,
)
_THREADS_PER_DEVICE = 2


def set_virtual_devices(count: int) -> None:
    """Splits this machine's CPU into `count` virtual devices, so that strategies can be tried without accelerators.

    Call it before anything uses a device. It also sizes XLA's thread pool, by the environment variable `NPROC`, which
    XLA reads when the CPU client starts. By default the pool has one thread per core. With more virtual devices than
    cores, the threads of a collective would wait for others that never get to run, until XLA aborts the process.

    Args:
        count: Number of virtual CPU devices, at least 1. A second call with the same number does nothing.

    Raises:
        DeviceError: `count` is below 1, or JAX has already started with another number of CPU devices.

    Example:
        >>> import jax
        >>> rx.config.set_virtual_devices(8)
        >>> len(jax.devices("cpu"))
        8
    """
    if not is_int(count) or count < 1:
        raise DeviceError(f"The number of virtual devices must be an int of at least 1, got {count!r}.")
    previous = os.environ.get("NPROC", "")
    threads = max(_THREADS_PER_DEVICE * count, os.cpu_count() or 1, int(previous) if previous.isdigit() else 1)
    os.environ["NPROC"] = str(threads)
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:
        found = jax.local_device_count(backend="cpu")
        if found != count:
            _restore("NPROC", previous)
            raise DeviceError(
                f"Cannot make {count} virtual devices: JAX has already started with {found} CPU device(s). Call "
                "rx.config.set_virtual_devices at the top of the program, before anything creates an array or asks "
                f"for devices, or start Python with JAX_NUM_CPU_DEVICES={count} NPROC={threads}."
            ) from None


def cores() -> int:
    """Returns how many cores this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)  # Not on macOS and Windows.
    return (len(allowed(0)) if allowed is not None else os.cpu_count()) or 1


def _restore(name: str, value: str) -> None:
    if value:
        os.environ[name] = value
    else:
        os.environ.pop(name, None)


def default_devices() -> list[jax.Device]:
    """Returns all devices of this process: its accelerators, or without any its (virtual) CPUs."""
    return jax.local_devices()


def chosen_devices(devices: int | Sequence[str | jax.Device] | None) -> list[jax.Device]:
    """Returns the devices that a strategy trains on: named ones, or so many of the default ones, or all of these."""
    if isinstance(devices, int):
        return _first(devices)
    return parse_devices(devices) if devices is not None and len(devices) else default_devices()


def _first(count: int) -> list[jax.Device]:
    found = default_devices()
    if isinstance(count, bool) or not 1 <= count <= len(found):
        raise DeviceError(
            f"The number of devices must be an int from 1 to {len(found)}, got {count!r}. {_existing()} "
            "rx.config.set_virtual_devices(n) at the top of the program makes virtual CPU devices."
        )
    return found[:count]


def parse_devices(devices: Sequence[str | jax.Device]) -> list[jax.Device]:
    """Returns the JAX devices that `devices` names, in order, as JAX or TensorFlow spell them (`"/device:TPU:3"`)."""
    if isinstance(devices, str):
        devices = [devices]
    found = [_parse(device) for device in devices]
    if not found:
        raise DeviceError("A strategy needs at least one device, got an empty list.")
    repeated = sorted({device_name(device) for device in found if found.count(device) > 1})
    if repeated:
        raise DeviceError(f"Each device can serve one replica only, but {repeated} came more than once.")
    return found


def _parse(device: str | jax.Device) -> jax.Device:
    if isinstance(device, jax.Device):
        return device
    match = _DEVICE.match(device) if isinstance(device, str) else None
    if match is None:
        raise DeviceError(f"Not a device: {device!r}. Write it like 'cpu:0', '/gpu:1' or 'GPU:0'. {_existing()}")
    # The index counts this process's devices of that platform.
    platform, index = match["platform"].lower(), int(match["index"] or 0)
    try:
        candidates = jax.local_devices(backend=platform)
    except RuntimeError:
        candidates = []
    if index >= len(candidates):
        raise DeviceError(
            f"Device {device!r} does not exist. {_existing()} rx.config.set_virtual_devices(n) at the top "
            "of the program makes virtual CPU devices."
        )
    return candidates[index]


def _existing() -> str:
    found = dict.fromkeys(device_name(device) for device in (*jax.local_devices(), *jax.local_devices(backend="cpu")))
    return f"This process has: {', '.join(found)}."


def memory_limit(devices: Sequence[jax.Device]) -> int | None:
    """Returns the bytes that the smallest of this process's devices has; None if JAX reports none, as for CPUs."""
    own = [device for device in devices if device.process_index == jax.process_index()]
    return min(
        (stats["bytes_limit"] for device in own if "bytes_limit" in (stats := device.memory_stats() or {})),
        default=None,
    )


def device_name(device: jax.Device) -> str:
    """Returns the name under which `parse_devices` finds `device`, such as `"gpu:1"`."""
    peers = jax.local_devices(backend=device.platform)
    return f"{device.platform}:{peers.index(device)}" if device in peers else str(device)
