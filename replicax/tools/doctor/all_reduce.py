"""The proof of the pudding: two processes on this machine, started as `replicax run` starts them, add arrays."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

from replicax.cluster.environment import Environ
from replicax.compat.systems import WAY_OUT, why_no_jobs
from replicax.errors.exit_codes import describe
from replicax.job.launching.timed import Outcome, run_in_time
from replicax.job.options import Options
from replicax.job.processes.output import last_traceback
from replicax.tools.doctor import probe
from replicax.tools.doctor.findings import Finding, fail, ok, warn

_SECONDS = 120.0
_NAME = "all-reduce"
_STACK = re.compile(r"\s*(@ |\*\*\* |PC: |#\d)")  # Lines of a stack in compiled code.
_CRASH = "Fatal Python error"  # A list of modules follows it.
_CURE = "If the message does not tell, run `replicax run --workers 2` with a script of yours and look at its logs."


def check_all_reduce(environ: Environ, timeout_s: float = _SECONDS) -> Finding:
    """Starts two processes on 127.0.0.1 that add arrays, and measures how fast. On CPUs: that is what all have."""
    if why := why_no_jobs():
        return warn(_NAME, why, WAY_OUT)
    left_out = ("XLA_FLAGS", "JAX_PLATFORMS", "NPROC")
    environment = {name: value for name, value in environ.items() if name not in left_out} | {"JAX_PLATFORMS": "cpu"}
    with tempfile.TemporaryDirectory(prefix="replicax-doctor-") as folder:
        outcome = run_in_time(Options(probe.__file__, workers=2, grace=2.0), Path(folder), timeout_s, environment)
        logs = {name: path.read_text(errors="replace", encoding="utf-8") for name, path in outcome.logs.items()}
    return read_outcome(outcome, logs, timeout_s)


def read_outcome(outcome: Outcome, logs: dict[str, str], timeout_s: float) -> Finding:
    """Returns what two processes, ended as `outcome` says, found out."""
    if outcome.timed_out:
        last = _last(logs)
        return fail(_NAME, f"two processes on 127.0.0.1 were not done after {timeout_s:g} s. {last}", _CURE, logs=logs)
    if outcome.code:
        text = f"{outcome.failed} ended with {describe(outcome.code)}: {_words(logs.get(outcome.failed, ''))}"
        return fail(_NAME, text, _CURE, logs=logs)
    lines = [line for line in logs["worker 0"].splitlines() if line.startswith(probe.MARK)]
    seconds = {int(size): time for size, time in json.loads(lines[-1].removeprefix(probe.MARK)).items()}
    rates = {size: size / time for size, time in seconds.items()}
    fastest = max(rates, key=lambda size: rates[size])
    smallest = min(seconds)
    text = (
        f"2 processes on 127.0.0.1: {rates[fastest] / 1e6:.0f} MB/s at {fastest / 2**20:g} MiB, "
        f"{seconds[smallest] * 1e3:.2f} ms for {smallest / 2**10:g} KiB"
    )
    details = {str(size): {"seconds": seconds[size], "bytes_per_second": rates[size]} for size in seconds}
    return ok(_NAME, text, sizes=details)


def _words(log: str) -> str:
    """Returns the line that says why a process ended: that of the exception, or what stands before a crash."""
    before, crash, _ = log.partition(_CRASH)
    words = before if crash else last_traceback(log.splitlines())
    lines = [line for line in words.splitlines() if line.strip() and not _STACK.match(line)]
    return lines[-1].strip() if lines else "it printed nothing"


def _last(logs: dict[str, str]) -> str:
    lines = [line for log in logs.values() for line in log.splitlines() if "missing" in line or "proxy" in line]
    return lines[-1] if lines else ""
