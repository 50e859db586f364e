"""Environment variables that change what replicax does."""

from __future__ import annotations

import difflib

from replicax.checks import environment_names
from replicax.cluster.environment import Environ
from replicax.tools.doctor.findings import Finding, ok, warn

_PREFIX = "REPLICAX_"
_HIDDEN = (environment_names.TOKEN,)
#: Variables that users set.
OVERRIDES = (
    "JAX_ENABLE_X64",
    "JAX_NUM_CPU_DEVICES",
    "JAX_PLATFORMS",
    environment_names.END_TIMEOUT,
    environment_names.HOST,
    environment_names.INSECURE,
    environment_names.JOIN,
    environment_names.KEEP_MEMORY,
    environment_names.LEDGER,
    environment_names.SLOW_TIMEOUT,
    environment_names.STALL_TIMEOUT,
    environment_names.TEST_LOGS,
    environment_names.TOKEN,
    environment_names.TRACEBACK,
    "XLA_FLAGS",
)
#: Variables by which a launcher tells its workers who they are.
OF_LAUNCHERS = (
    environment_names.ATTEMPT,
    environment_names.CLIENT,
    environment_names.COORDINATOR,
    environment_names.ELASTIC,
    environment_names.JOB,
    environment_names.LAUNCHER_PID,
    environment_names.LIFE,
    environment_names.LOCAL_NUM_PROCESSES,
    environment_names.LOCAL_PROCESS_ID,
    environment_names.LOG_DIR,
    environment_names.MEETING,
    environment_names.NEWS,
    environment_names.NUM_PROCESSES,
    environment_names.PROCESS_ID,
    environment_names.PS_SERVERS,
    environment_names.PS_WORKERS,
    environment_names.RAY_FOLDER,
    environment_names.SNAPSHOTS,
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
