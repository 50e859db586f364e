"""Plans well-known models of their real sizes for slices of TPUs, and says how long that takes (needs libtpu).

GPT-2, Gemma 2B and ResNet-50 on four slices are the table of the page "Will it fit?". GPT-2 on 256 chips is
`plan_seconds`; a Gemma of 7 billion parameters on as many `plan_large_seconds`, and `plan_large_gib` of host memory.

Usage: python tests/soak/plan_models.py [--only MODEL:SLICE ...]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from replicax.planning import Plan
from replicax.planning.report import size, span
from replicax.planning.topologies import Topology

_ROOT = Path(__file__).resolve().parent.parent.parent
_SCRIPT = Path(__file__).with_name("plan_models_script.py")
_SLICES = ("v5e:4x4", "v6e:4x4", "v5p:2x2x2", "v5e:16x16")
_ROWS = {"gpt2": 4, "gemma-2b": 1, "resnet50": 32, "gemma-7b": 1}  # for each chip
_LARGE = ("gemma-7b", "v5e:16x16")
_ALL = [*((model, on) for on in _SLICES for model in ("gpt2", "gemma-2b", "resnet50")), _LARGE]
_DOES_NOT_FIT = 3


def planned(model: str, on: str) -> Plan:
    """Returns the plan that the command prints."""
    rows = _ROWS[model] * Topology.of(on).size
    command = [sys.executable, "-m", "replicax", "plan", "--on", on, "--json", str(_SCRIPT), model, str(rows)]
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    environ = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path}
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert done.returncode in (0, _DOES_NOT_FIT), f"{command} has ended with {done.returncode}:\n{done.stderr[-2000:]}"
    [found] = json.loads(done.stdout)
    return Plan.from_dict(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[":".join(each) for each in _ALL])
    for model, on in (each.split(":", 1) for each in parser.parse_args().only):
        begin = time.perf_counter()
        plan = planned(model, on)
        seconds = time.perf_counter() - begin
        gib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
        room = "fits" if plan.fits else "does not fit"
        takes = f", {span(plan.seconds)} a step" if plan.seconds is not None else ""
        line = f"{model:9} {on:9} {room}: {size(plan.needed)} of {size(plan.on.memory or 0)}{takes}"
        print(f"{line}; planned in {seconds:.0f} s, {plan.compile_seconds:.0f} of them compiling", flush=True)
        if (model, on) == ("gpt2", "v5e:16x16"):
            print(f"RESULT plan_seconds {seconds:.0f}")
        if (model, on) == _LARGE:
            print(f"RESULT plan_large_seconds {seconds:.0f}")
            print(f"RESULT plan_large_gib {gib:.1f}")


if __name__ == "__main__":
    main()
