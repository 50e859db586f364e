"""The speed of this machine, measured: `replicax plan --calibrate` keeps it, and times of plans are then told by it.

A process of its own measures. Virtual CPU devices share the cores. So what is measured on one counts for all of them
together.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from replicax.contracts.shown import Shown, html_table, in_columns
from replicax.errors import PlanError
from replicax.errors.exit_codes import describe
from replicax.planning.topologies import Topology
from replicax.tools.plots.style import with_unit

#: The two sizes of each: rows of square matrices, and bytes of arrays.
_MATRICES = (256, 1024)
_ARRAYS = (2**20, 2**26)
_SENT = (2**12, 2**22)
_DEVICES = 8
_SECONDS_EACH = 1.2  # For six measurements, beside starting JAX.
_LEAST_TIMES = 3
_TIMEOUT_S = 300.0  # for all that is measured: a machine on which it takes longer is busy


@dataclasses.dataclass(frozen=True)
class Measured:
    """Seconds of one operation, of several times: the least, and what half of them stayed under."""

    size: int
    least: float
    typical: float


@dataclasses.dataclass(frozen=True)
class Calibration:
    """The speed of a machine.

    Attributes:
        machine: Its name and processor.
        date: When it was measured.
        devices: The number of virtual devices between which sums were measured.
        matmul: Products of two square float32 matrices; the sizes are numbers of rows.
        memory: Sums of two arrays; the sizes are bytes of each.
        all_reduce: Sums over the devices; the sizes are bytes on each device.
        over_processes: Sums over two processes of this machine; empty if there can be none.
    """

    machine: str
    date: str
    devices: int
    matmul: tuple[Measured, ...]
    memory: tuple[Measured, ...]
    all_reduce: tuple[Measured, ...]
    over_processes: tuple[Measured, ...] = ()

    @property
    def origin(self) -> str:
        """Where a time that is told by it comes from."""
        return f"what was measured on {self.machine}, {self.date}"

    def flops(self) -> tuple[float, float]:
        """Returns operations a second: the most, and the least of what is typical."""
        return (
            max(2.0 * each.size**3 / each.least for each in self.matmul),
            min(2.0 * each.size**3 / each.typical for each in self.matmul),
        )

    def bandwidth(self) -> tuple[float, float]:
        """Returns bytes a second that are read and written: the most, and the least of what is typical."""
        return (
            max(3.0 * each.size / each.least for each in self.memory),
            min(3.0 * each.size / each.typical for each in self.memory),
        )

    def sending(self, count: int, num_bytes: int, devices: int, hosts: int) -> tuple[float, float]:
        """Returns the seconds of collectives: the least, and what is typical."""
        if devices == 1 or not count:
            return 0.0, 0.0
        over_processes = hosts > 1 and self.over_processes
        small, large = self.over_processes if over_processes else self.all_reduce
        # Virtual devices share the cores: half of them take half the time.
        share = hosts / 2 if over_processes else devices / self.devices

        def seconds(of_small: float, of_large: float) -> float:
            each = max(of_large - of_small, 0.0) / (large.size - small.size)
            return share * (count * of_small + num_bytes * each)

        return seconds(small.least, large.least), seconds(small.typical, large.typical)

    def table(self) -> Shown:
        """Returns it as a table."""
        best, typical = self.flops()
        read, usually = self.bandwidth()
        rows = [
            ("matmul", f"{typical / 1e9:.3g} to {best / 1e9:.3g} GFLOP/s"),
            ("memory", f"{usually / 1e9:.3g} to {read / 1e9:.3g} GB/s"),
        ]
        for name, found in (("all-reduce", self.all_reduce), ("over 2 processes", self.over_processes)):
            rows += [(f"{name} of {with_unit(each.size)}", f"{each.typical * 1e3:.3g} ms") for each in found]
        return Shown(f"{self.origin}\n{in_columns(rows)}", html_table(("", ""), rows, self.origin))


def calibrate() -> Calibration:
    """Measures this machine, in about ten seconds, and keeps the figures for later plans.

    Raises:
        PlanError: The measuring process fails, or the figures cannot be written.
    """
    made = _measured()
    path = _path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(f".{os.getpid()}")
        beside.write_text(json.dumps(dataclasses.asdict(made), indent=1), encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        raise PlanError(
            f"The figures cannot be kept in {str(path)!r}: {error}. XDG_CACHE_HOME can name another."
        ) from None
    return made


def _measured() -> Calibration:
    environ = dict(os.environ)
    environ.pop("XLA_FLAGS", None)
    Topology.of(f"cpu:{_DEVICES}").prepare(environ)
    with tempfile.TemporaryDirectory(prefix="replicax-plan-") as folder:
        out = Path(folder, "figures.json")
        command = [sys.executable, "-c", f"from {__name__} import measure; measure()", str(out)]
        try:
            done = subprocess.run(command, env=environ, timeout=_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            raise PlanError(
                f"This machine was still being measured after {_TIMEOUT_S:g} s: try when it is idle."
            ) from None
        if done.returncode:
            raise PlanError(f"This machine cannot be measured: the process has ended with {describe(done.returncode)}.")
        found = json.loads(out.read_text(encoding="utf-8"))
    return _from_dict({**found, "over_processes": _over_processes()})


def kept() -> Calibration | None:
    """Returns what was measured on this machine; None if nothing was, or it cannot be read."""
    try:
        return _from_dict(json.loads(_path().read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):  # None, or of another version: it is measured anew.
        return None


def _from_dict(told: dict[str, Any]) -> Calibration:
    lists = ("matmul", "memory", "all_reduce", "over_processes")
    return Calibration(**{**told, **{name: tuple(Measured(**each) for each in told[name]) for name in lists}})


def _path() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home, "replicax", "plan", re.sub(r"[^\w.-]+", "-", _machine()) + ".json")


def _machine() -> str:
    return f"{platform.node()} ({platform.machine()}, {os.cpu_count()} processors)"


def _over_processes() -> list[dict[str, Any]]:
    """Returns the sums over two processes that `replicax doctor` measures."""
    from replicax.tools.doctor.all_reduce import check_all_reduce
    from replicax.tools.doctor.findings import Severity

    _say("Sums over two processes.")
    found = check_all_reduce(os.environ)
    if found.status is not Severity.OK:
        return []
    sizes: Any = found.details["sizes"]
    seconds = sorted((int(size), float(each["seconds"])) for size, each in sizes.items())
    return [{"size": size, "least": took, "typical": took} for size, took in (seconds[0], seconds[-1])]


def _measure() -> dict[str, Any]:
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    devices = jax.devices()
    mesh = jax.make_mesh((len(devices),), ("devices",))

    def product(rows: int) -> Callable[[], object]:
        compiled, a = jax.jit(jnp.matmul), jnp.ones([rows, rows])
        return lambda: jax.block_until_ready(compiled(a, a))

    def addition(size: int) -> Callable[[], object]:
        compiled, a = jax.jit(jnp.add), jnp.ones([size // 4])
        return lambda: jax.block_until_ready(compiled(a, a))

    def all_reduce(size: int) -> Callable[[], object]:
        own = NamedSharding(mesh, PartitionSpec("devices"))
        a = jax.device_put(jnp.ones([len(devices), size // 4]), own)
        compiled = jax.jit(
            jax.shard_map(
                lambda x: jax.lax.psum(x, "devices"),
                mesh=mesh,
                in_specs=PartitionSpec("devices"),
                out_specs=PartitionSpec(),
            )
        )
        return lambda: jax.block_until_ready(compiled(a))

    _say(f"Products of square matrices, of {' and '.join(map(str, _MATRICES))} rows.")
    matmul = [_timed(size, product(size)) for size in _MATRICES]
    _say(f"Sums of two arrays in memory, of {_sizes(_ARRAYS)}.")
    memory = [_timed(size, addition(size)) for size in _ARRAYS]
    _say(f"Sums over {len(devices)} virtual devices, of {_sizes(_SENT)} on each.")
    return {
        "machine": _machine(),
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "devices": len(devices),
        "matmul": matmul,
        "memory": memory,
        "all_reduce": [_timed(size, all_reduce(size)) for size in _SENT],
    }


def _say(what: str) -> None:
    """Tells whoever waits what is measured now: beside the table, which has standard output."""
    sys.stderr.write(f"{what}\n")
    sys.stderr.flush()


def _sizes(sizes: Sequence[int]) -> str:
    return " and ".join(map(with_unit, sizes))


def _timed(size: int, run: Callable[[], object]) -> dict[str, Any]:
    run()  # It compiles.
    end, seconds = time.perf_counter() + _SECONDS_EACH, list[float]()
    while time.perf_counter() < end or len(seconds) < _LEAST_TIMES:
        begin = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begin)
    return {"size": size, "least": min(seconds), "typical": statistics.median(seconds)}


def measure() -> None:
    """Measures, and writes the figures to the file that the process was told."""
    Path(sys.argv[1]).write_text(json.dumps(_measure()), encoding="utf-8")
