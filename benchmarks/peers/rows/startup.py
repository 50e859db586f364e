"""From the start of the interpreter to the end of the first step, without and with a cache of compiled programs."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from peers.contest import ContestError
from peers.row import Row, Setup

PROGRAMS = {
    "JAX by hand": "jax_plain",
    "JAX by hand, with optax": "jax_optax",
    "replicax, optax loop": "replicax_optax",
    "replicax, Keras loop": "replicax_keras",
    "replicax, fit": "replicax_fit",
    "Keras's own fit": "keras_fit",
}
STARTUPS = Path(__file__).resolve().parent.parent / "startups"


def _start(program: str, cache: str) -> float:
    """Returns the seconds of one start; `cache` is the folder that compiled programs are kept in, all of them."""
    environment = {
        **os.environ, "KERAS_BACKEND": "jax", "JAX_COMPILATION_CACHE_DIR": cache,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }  # fmt: skip
    for set_here in ("NPROC", "JAX_NUM_CPU_DEVICES"):
        environment.pop(set_here, None)
    command = [sys.executable, str(STARTUPS / f"{program}.py")]
    begin = time.time()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=180)
    if done.returncode:
        raise ContestError(f"The program {program} failed:\n{done.stderr[-4000:]}")
    return float(done.stdout.split()[-1]) - begin


def measure(setup: Setup) -> Row:
    """Starts each program in turn; each pair of starts has a cache of its own, empty at first."""
    cold: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    warm: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    with tempfile.TemporaryDirectory() as folder:
        for program in PROGRAMS.values():  # The files of the packages come into memory.
            _start(program, folder)
    for _ in range(1 if setup.quick else 4):
        for name, program in PROGRAMS.items():
            with tempfile.TemporaryDirectory() as folder:
                cold[name].append(_start(program, folder))
                warm[name].append(_start(program, folder))
    row = Row("first step, from the start of the interpreter", unit="s")
    peer = statistics.median(cold["JAX by hand, with optax"])
    for name in PROGRAMS:
        for how, found in (("", cold), (" (compiled before)", warm)):
            median = statistics.median(found[name])
            row.lines.append((name + how, median, median / peer))
    by = cold["JAX by hand, with optax"]
    row.result("startup_optax_vs_jax", [a / b for a, b in zip(cold["replicax, optax loop"], by, strict=True)])
    row.result("startup_optax_warm_vs_jax", [
        a / b for a, b in zip(warm["replicax, optax loop"], warm["JAX by hand, with optax"], strict=True)
    ])  # fmt: skip
    row.result("startup_keras_s", warm["replicax, Keras loop"])
    row.result("startup_keras_cold_s", cold["replicax, Keras loop"])
    row.result("startup_fit_s", warm["replicax, fit"])
    row.result("startup_fit_vs_keras_fit", [
        a / b for a, b in zip(cold["replicax, fit"], cold["Keras's own fit"], strict=True)
    ])  # fmt: skip
    row.notes.append(
        "the ratio is to JAX with optax, which imports and compiles what the optax loop does; the Keras loop is "
        "counted in seconds with programs compiled before"
    )
    return row
