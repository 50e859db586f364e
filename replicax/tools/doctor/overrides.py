"""Environment variables that change what replicax does."""

from __future__ import annotations

import difflib

from replicax.cluster.environment import Environ
from replicax.tools.doctor.findings import Finding, ok, warn

_PREFIX = "REPLICAX_"
_HIDDEN = ("REPLICAX_TOKEN",)
#: Variables that users set.
OVERRIDES = (
    "JAX_ENABLE_X64",
    "JAX_NUM_CPU_DEVICES",
    "JAX_PLATFORMS",
    "REPLICAX_END_TIMEOUT",
    "REPLICAX_HOST",
    "REPLICAX_INSECURE",
    "REPLICAX_JOIN",
    "REPLICAX_KEEP_MEMORY",
    "REPLICAX_SLOW_TIMEOUT",
    "REPLICAX_STALL_TIMEOUT",
    "REPLICAX_TEST_LOGS",
    "REPLICAX_TOKEN",
    "REPLICAX_TRACEBACK",
    "XLA_FLAGS",
)
#: Variables by which a launcher tells its workers who they are.
OF_LAUNCHERS = (
    "REPLICAX_ATTEMPT",
    "REPLICAX_CLIENT",
    "REPLICAX_COORDINATOR",
    "REPLICAX_ELASTIC",
    "REPLICAX_JOB",
    "REPLICAX_LAUNCHER_PID",
    "REPLICAX_LIFE",
    "REPLICAX_LOCAL_NUM_PROCESSES",
    "REPLICAX_LOCAL_PROCESS_ID",
    "REPLICAX_LOG_DIR",
    "REPLICAX_MEETING",
    "REPLICAX_NEWS",
    "REPLICAX_NUM_PROCESSES",
    "REPLICAX_PROCESS_ID",
    "REPLICAX_PS_SERVERS",
    "REPLICAX_PS_WORKERS",
    "REPLICAX_RAY_FOLDER",
    "REPLICAX_SNAPSHOTS",
)


def check_overrides(environ: Environ) -> Finding:
    """Lists the variables that are set, and warns of names that nothing reads."""
    found = {name: environ[name] for name in OVERRIDES if name in environ}
    shown = ", ".join(f"{name}={'(hidden)' if name in _HIDDEN else value}" for name, value in found.items())
    known = (*OVERRIDES, *OF_LAUNCHERS)
    unknown = sorted(name for name in environ if name.startswith(_PREFIX) and name not in known)
    details = {"set": [*found], "unknown": unknown}
    if not unknown:
        return ok("overrides", shown or "none", **details)
    near = difflib.get_close_matches(unknown[0], OVERRIDES, 1)
    cure = f"Unset it, or write {near[0]}." if near else f"Unset it. There are {', '.join(OVERRIDES)}."
    return warn("overrides", f"nothing reads {', '.join(unknown)}", cure, **details)
