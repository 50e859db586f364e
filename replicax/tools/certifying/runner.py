"""Runs a script and records its steps: `python -m replicax.tools.certifying.runner [SPECIFICATION.json]`.

Without a specification it reads the paths of some from its input, runs each in a fork of itself, and answers with a
line: the exit code, or null after too long. `starting.py` starts it so, or `replicax run` once for each worker.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from replicax.cluster import detect_cluster
from replicax.strategies.base import Strategy
from replicax.tensorflow.proof.on_tensorflow import run_script
from replicax.tools.certifying.perturbing import LastBits
from replicax.tools.certifying.recorder import Recorder
from replicax.tools.certifying.recording import Recording
from replicax.tools.certifying.taps import Taps
from replicax.tools.certifying.targets import STRATEGIES, Target, refuse_strategies, replace_strategies


def main(path: str) -> int:
    """Runs the script of a specification, and writes its recording; returns the exit code."""
    wanted = json.loads(Path(path).read_text(encoding="utf-8"))
    target, script = Target(*wanted["target"]), Path(wanted["script"])
    worker = detect_cluster().config.process_id if target.workers > 1 else 0
    rx = importlib.import_module("replicax")
    rx.config.set_virtual_devices(target.devices)
    seed = wanted["seed"]
    recorder = Recorder(
        wanted["steps"], worker, jax.effects_barrier, None if seed is None else LastBits(seed, wanted["dtype"])
    )
    made: list[Strategy] = []
    taps = Taps(recorder, script, worker, wanted["reverses_rows"])
    replace_strategies(rx, STRATEGIES[target.kind], made.append)
    refuse_strategies(rx)
    taps.install(rx)
    _seed()
    error = run_script(str(script), wanted["arguments"])
    jax.effects_barrier()
    facts = {
        "strategies": len(made),
        "replicas": made[0].num_replicas_in_sync if made else 0,
        "mesh": str(made[0].mesh.shape) if made and made[0].mesh is not None else "",
        "device": str(jax.devices()[0].device_kind),
        "dtype": max(taps.dtypes, key=lambda dtype: float(jnp.finfo(dtype).eps), default="float32"),
    }
    Recording(tuple(recorder.events()), error, facts).write(Path(wanted["out"], f"{worker}.json"))
    if made and target.workers > 1 and not error:
        made[0].barrier("the end of the certified steps")  # A worker that ends earlier is lost to the others.
    return 1 if error else 0


def _seed() -> None:
    """Gives scripts that set no seed the same random numbers in each run."""
    import keras

    random.seed(0)
    np.random.seed(0)
    keras.utils.set_random_seed(0)


def serve() -> None:
    """Runs the specifications that are named on the input, each in a fork; where there are none, in a process."""
    import keras  # noqa: F401 - before the forks, which all need it

    for line in sys.stdin:
        path = line.strip()
        wanted = json.loads(Path(path).read_text(encoding="utf-8"))
        code = _in_fork(path, wanted) if hasattr(os, "fork") else _in_process(path, wanted)
        print(json.dumps(code), flush=True)


def _in_fork(path: str, wanted: dict) -> int | None:
    child = os.fork()
    if not child:
        code = 1
        try:
            output = os.open(wanted["output"], os.O_WRONLY | os.O_CREAT)
            nothing = os.open(os.devnull, os.O_RDONLY)
            for new, old in ((nothing, 0), (output, 1), (output, 2)):
                os.dup2(new, old)
            os.chdir(wanted["work"])
            code = main(path)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)  # Functions that the parent has registered for its end are the parent's.
    deadline = time.monotonic() + wanted["limit_s"]
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _in_process(path: str, wanted: dict) -> int | None:
    with open(wanted["output"], "wb") as output:
        command = [sys.executable, "-m", "replicax.tools.certifying.runner", path]
        try:
            return subprocess.run(
                command, cwd=wanted["work"], stdout=output, stderr=output, timeout=wanted["limit_s"], check=False
            ).returncode
        except subprocess.TimeoutExpired:
            return None


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(main(sys.argv[1]))
    serve()
