"""Devices, found by a process of their own: a driver that hangs must not hang the doctor."""

from __future__ import annotations

import collections
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import TypedDict

from replicax.cluster.environment import Environ
from replicax.tools.doctor.findings import Finding, fail, ok, warn

_THREADS_PER_DEVICE = 2
_SECONDS = 90.0
_MARK = "DEVICES "
_LINES_SHOWN = 5
_PROGRAM = f"""
import json, jax
def memory(device):
    try:
        return (device.memory_stats() or {{}}).get("bytes_limit")
    except Exception:
        return None
found = [dict(platform=d.platform, kind=d.device_kind, memory=memory(d)) for d in jax.local_devices()]
print({_MARK!r} + json.dumps(found))
"""


class FoundDevice(TypedDict):
    """A device that JAX finds."""

    platform: str  # such as "gpu"
    kind: str  # the model
    memory: int | None  # in bytes; None if JAX does not report it


def check_devices(environ: Environ) -> Iterator[Finding]:
    """Checks which devices JAX finds, and that its thread pool is large enough for virtual ones."""
    found = find_devices(environ)
    if isinstance(found, Finding):
        yield found
        return
    yield describe_devices(found)
    cpus = sum(device["platform"] == "cpu" for device in found)
    yield check_threads(environ, cpus, os.cpu_count() or 1)


def find_devices(environ: Environ, timeout_s: float = _SECONDS) -> list[FoundDevice] | Finding:
    """Returns the devices that JAX finds in a new process, or what went wrong."""
    command = [sys.executable, "-c", _PROGRAM]
    try:
        done = subprocess.run(
            command,
            env=dict(environ),
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return fail(
            "devices",
            f"JAX was still looking for devices after {timeout_s:g} s",
            "See that no other process holds the accelerators and that their driver answers (nvidia-smi); "
            "JAX_PLATFORMS=cpu leaves them out.",
        )
    lines = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
    if not lines:
        last = " / ".join(done.stderr.strip().splitlines()[-_LINES_SHOWN:])
        return fail("devices", f"JAX finds none: {last}", "Look at JAX_PLATFORMS, XLA_FLAGS and the driver.")
    return json.loads(lines[-1].removeprefix(_MARK))


def describe_devices(found: Sequence[FoundDevice]) -> Finding:
    """Returns how many devices of which kind there are."""
    kinds = collections.Counter((device["platform"], device["kind"], device["memory"]) for device in found)
    texts = []
    for (platform, kind, memory), count in kinds.items():
        size = f", {memory / 2**30:.1f} GiB each" if memory else ""
        texts.append(f"{count} x {platform}{'' if kind == platform else f' ({kind})'}{size}")
    return ok("devices", "; ".join(texts), devices=[dict(device) for device in found])


def check_threads(environ: Environ, devices: int, cores: int) -> Finding:
    """Checks that XLA has two threads for each virtual device: with fewer, collectives wait for threads forever."""
    told = environ.get("NPROC", "")
    threads = int(told) if told.isdecimal() and int(told) else cores
    needed = _THREADS_PER_DEVICE * devices
    text = f"{threads} of XLA's threads for {devices} CPU device(s)"
    details = {"threads": threads, "cpu_devices": devices, "needed": needed}
    if devices > 1 and threads < needed:
        cure = f"export NPROC={needed}, or call rx.config.set_virtual_devices({devices}), which sets it."
        return warn("threads", f"{text}: collectives can deadlock", cure, **details)
    return ok("threads", text, **details)
