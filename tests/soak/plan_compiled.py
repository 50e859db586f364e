"""Compiles the steps of `plan_steps.py` for a slice of TPUs, one after the other in a process of their own.

Usage: python tests/soak/plan_compiled.py SLICE K/N
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from replicax.planning.topologies import Topology


def compiled_for(on: str, part: str) -> Iterator[dict[str, Any]]:
    """Yields of each pair of a part whether libtpu has compiled it, for how many devices and hosts; or its error."""
    command = [sys.executable, str(Path(__file__).resolve()), on, part]
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                yield json.loads(line)
        process.wait()
        log.seek(0)
        assert process.returncode == 0, f"{command} has ended with {process.returncode}:\n{log.read()[-2000:]}"


def main(on: str, part: str) -> None:
    topology = Topology.of(on)
    topology.prepare(os.environ)

    import replicax.context as context
    from replicax.planning.child import Planned, Planner, prepare
    from tests.soak.plan_steps import PAIRS, name_of, part_of

    prepare(topology)
    for step, make in part_of(PAIRS, *map(int, part.split("/"))):
        gc.collect()  # Variables of the step before would be taken for this one's.
        planner, begin, error = Planner(topology, ["train"]), time.perf_counter(), ""
        try:
            with context.entered(planner=planner), contextlib.nullcontext() if make is None else make().scope():
                step()
        except Planned:
            pass
        except Exception as raised:  # The other steps are compiled, whatever libtpu says of one.
            error = f"{type(raised).__name__}: {raised}"
        found: dict[str, Any] = {"name": name_of(step, make), "on": on, "seconds": time.perf_counter() - begin}
        if planner.plans:
            plan = planner.plans[0]
            found |= {"devices": plan.on.size, "hosts": plan.hosts, "fits": plan.fits}
            error = error or plan.refused
        compiled = bool(planner.plans and planner.plans[0].memory is not None)
        print(json.dumps(found | {"compiled": compiled, "error": error}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
