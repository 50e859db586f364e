"""Starts the processes that run a script under control."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from replicax.errors import ArgumentError, ReplicaxError
from replicax.tensorflow.proof.recording import Recording

FOLDER = Path(__file__).resolve().parent


class Run(NamedTuple):
    """A script to run, and how."""

    script: Path
    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = {}  # variables to add
    devices: int = 1  # one for each replica
    steps: int = 50  # how many are recorded
    stop: bool = False  # whether the script ends after these steps
    every: bool = False  # whether variables are recorded after every step, not only after some
    limit_s: float = 300.0


class RunFailedError(ReplicaxError, RuntimeError):
    """A controlled run left no recording."""


def on_tensorflow(run: Run, python: Path, legacy_keras: bool = False) -> Recording:
    """Runs a script on TensorFlow, in an interpreter that has it and need not have replicax."""
    with tempfile.TemporaryDirectory() as folder:
        # The package is found under another name, with nothing of replicax beside it.
        (Path(folder) / "proof").symlink_to(FOLDER)
        return _run(
            run,
            [str(python), "-m", "proof.on_tensorflow"],
            {"PYTHONPATH": folder, "KERAS_BACKEND": "tensorflow"},
            legacy_keras,
        )


def on_replicax(run: Run) -> Recording:
    """Runs a converted script on replicax, on CPU devices, in this interpreter."""
    flags = [each for each in os.environ.get("XLA_FLAGS", "").split() if "device_count" not in each]
    flags.append(f"--xla_force_host_platform_device_count={run.devices}")
    return _run(
        run,
        [sys.executable, "-m", "replicax.tensorflow.proof.on_replicax"],
        {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "XLA_FLAGS": " ".join(flags)},
    )


def _run(run: Run, command: Sequence[str], environment: Mapping[str, str], legacy_keras: bool = False) -> Recording:
    if not run.script.is_file():
        raise ArgumentError(f"{run.script} is no file. Name the script to run.")
    with tempfile.TemporaryDirectory() as folder:
        specification, out = Path(folder, "specification.json"), Path(folder, "recording.json")
        wanted = {
            "script": str(run.script.resolve()),
            "arguments": list(run.arguments),
            "devices": run.devices,
            "steps": run.steps,
            "stop": run.stop,
            "every": run.every,
            "legacy_keras": legacy_keras,
            "out": str(out),
        }
        specification.write_text(json.dumps(wanted), encoding="utf-8")
        work = Path(folder, "work")
        work.mkdir()
        try:
            done = subprocess.run(
                [*command, str(specification)],
                cwd=work,
                env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment, **run.environment},
                capture_output=True,
                text=True,
                timeout=run.limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise RunFailedError(
                f"{run.script.name} was not done after {run.limit_s:g} s ({' '.join(command)}, {run.devices} "
                "replicas). Give it more time, or fewer steps."
            ) from error
        if not out.is_file():
            raise RunFailedError(
                f"{run.script.name} left no recording (exit code {done.returncode}, {' '.join(command)}, "
                f"{run.devices} replicas). It ended with:\n{(done.stdout + done.stderr)[-2000:]}"
            )
        return Recording.read(out)
