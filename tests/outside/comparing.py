"""Runs a program on one device and on eight, and compares the parameters at the end and the losses of all steps."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).with_name("programs")
ROOT = Path(__file__).resolve().parents[2]
NUM_DEVICES = 8
LONGEST_RUN_S = 280


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What two runs of a program gave.

    Attributes:
      parameters: how far the parameters are apart at the end: the norm of the difference, relative to their norm.
      losses: the same of the losses of all steps.
      learned: how far the losses lie from the first one, relative to it.
    """

    parameters: float
    losses: float
    learned: float

    def is_equal(self, tolerance: float) -> bool:
        """Whether both agree; a program whose loss stands still shows nothing."""
        return self.parameters <= tolerance and self.losses <= 10 * tolerance and self.learned > 1e3 * tolerance


def compare(name: str) -> Comparison:
    """Compares a program's forms in a process of its own."""
    command = [sys.executable, "-m", "tests.outside.comparing", name]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "KERAS_BACKEND": "jax"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=LONGEST_RUN_S
    )
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-6000:]}"
        )
    return Comparison(**json.loads(done.stdout.splitlines()[-1]))


def compare_here(path: Path) -> Comparison:
    """Compares the forms of the program at `path` in this process."""
    import jax
    import keras
    import numpy as np

    from tests.outside.forms import original

    def run(form: str, text: str) -> tuple[Any, Any]:
        keras.utils.set_random_seed(0)
        module = types.ModuleType(f"{path.stem}_{form}")
        sys.modules[module.__name__] = module
        exec(compile(text, str(path), "exec"), module.__dict__)
        parameters, losses = module.main()
        leaves = [np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(parameters)]
        return np.concatenate(leaves), np.asarray([float(loss) for loss in losses])

    text = path.read_text()
    expected, expected_losses = run("original", original(text))
    actual, losses = run("distributed", text)

    def apart(a: Any, b: Any) -> float:
        return float(np.linalg.norm(a - b) / np.linalg.norm(b))

    learned = apart(expected_losses, np.full_like(expected_losses, expected_losses[0]))
    return Comparison(apart(actual, expected), apart(losses, expected_losses), learned)


if __name__ == "__main__":
    import replicax as rx

    rx.config.set_virtual_devices(NUM_DEVICES)
    result = compare_here(PROGRAMS / f"{sys.argv[1]}.py")
    print(json.dumps(dataclasses.asdict(result)))
