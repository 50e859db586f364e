"""Kills a process at random moments while it saves in the background; the newest checkpoint must always open.

Usage: python tests/soak/checkpoint_kills.py --kills 50
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
LONGEST_S = 1.0  # from the first save to the kill; a save takes some 50 ms
SECONDS_TO_START = 120

# The values of a step are all the step's number, so that a mixture of two steps is seen.
_WRITER = """
import sys
import numpy as np
import replicax as rx
values = {f"v{i}": rx.Variable(np.zeros((256, 64), np.float32)) for i in range(8)}
manager = rx.CheckpointManager(sys.argv[1], max_to_keep=2, objects=values)
step = manager.restore_or_initialize() or 0
while True:
    step += 1
    for value in values.values():
        value.assign(np.full((256, 64), step, np.float32))
    manager.save(step)
    print(step, flush=True)
"""


def soak(kills: int, seed: int = 0) -> dict[str, Any]:
    """Returns the number of kills, of checkpoints that could not be read, and what was wrong with them."""
    chance = random.Random(seed)
    problems: list[str] = []
    last_steps = 0
    with tempfile.TemporaryDirectory() as directory:
        for kill in range(kills):
            _write_until_killed(directory, chance.uniform(0, LONGEST_S))
            problem, step = _problem(directory, at_least=last_steps)
            problems += [f"kill {kill}: {problem}"] if problem else []
            last_steps = step
    found = {"checkpoint_kills": kills, "checkpoint_unreadable": len(problems)}
    return {**found, "problems": problems, "steps": last_steps}


def _write_until_killed(directory: str, seconds: float) -> None:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", _WRITER, directory], stdout=subprocess.PIPE, env=environment, text=True, cwd=ROOT
    )
    try:
        for _ in range(2):  # So that there is one that was durable when the next was begun.
            assert process.stdout is not None
            assert process.stdout.readline(), "the writer ended by itself"
        time.sleep(seconds)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=SECONDS_TO_START)


def _problem(directory: str, at_least: int) -> tuple[str, int]:
    """Returns what is wrong with the newest checkpoint, and its step."""
    import numpy as np

    import replicax as rx
    from replicax.checkpoint import damaged_files

    values = {f"v{i}": rx.Variable(np.zeros((256, 64), np.float32)) for i in range(8)}
    manager = rx.CheckpointManager(directory, objects=values)
    try:
        step = manager.latest_step()
        if step is None or step <= at_least:
            return f"the newest is {step}, after {at_least}", step or 0
        for each in manager.all_steps():
            damaged = damaged_files(manager.path(each))
            if damaged:
                return f"step {each}: {damaged}", step
        manager.restore()
    except Exception as error:
        return repr(error), at_least
    found = {float(number) for value in values.values() for number in np.unique(value.numpy())}
    return ("" if found == {float(step)} else f"step {step} has the values {found}"), step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    result = soak(arguments.kills, arguments.seed)
    print(*result["problems"], sep="\n")
    print(f"{result['steps']} steps were saved")
    print(f"RESULT checkpoint_kills {result['checkpoint_kills']}")
    print(f"RESULT checkpoint_unreadable {result['checkpoint_unreadable']}")
    sys.exit(bool(result["checkpoint_unreadable"]))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
