"""Starts the processes of a run, and reads what they have recorded.

All runs of one process are forks of one that has imported everything and started no device: imports are two thirds of a
short run. The workers of a job are started by `replicax run`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self

from replicax.compat.systems import kill_group
from replicax.errors import ReplicaxError
from replicax.tools.certifying.recording import Recording
from replicax.tools.certifying.targets import ONE_DEVICE, Target

_MODULE = "replicax.tools.certifying.runner"


class Run(NamedTuple):
    """A script to run, and how."""

    script: Path
    arguments: Sequence[str]
    steps: int
    limit_s: float
    target: Target = ONE_DEVICE
    seed: int | None = None  # of changed last bits; None: none are changed
    dtype: str = "float32"  # whose last bits
    reverses_rows: bool = False


class NotRunError(ReplicaxError, RuntimeError):
    """A script left no recording, or made no step."""


class Runner:
    """Runs scripts on virtual CPU devices, one after the other, until the end of a `with` block."""

    def __init__(self) -> None:
        self._environment = _environment()
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if self._process is not None:
            assert self._process.stdin is not None and self._process.stdout is not None
            if kind is not None:  # It may be in the middle of a run, which nobody waits for any more.
                kill_group(self._process.pid)
            self._process.stdin.close()  # It ends at the end of its input.
            self._process.stdout.close()
            self._process.wait()
            self._process = None

    def __call__(self, run: Run) -> Recording:
        """Runs a script in a new folder with links to what lies beside it: it finds its data, and leaves nothing there.

        Raises:
            NotRunError: It was not done in time, or left no recording.
        """
        with tempfile.TemporaryDirectory(prefix="replicax-certify-") as folder:
            work, out, output = Path(folder, "work"), Path(folder, "out"), Path(folder, "output.txt")
            work.mkdir()
            out.mkdir()
            for each in run.script.parent.iterdir():
                (work / each.name).symlink_to(each)
            specification = Path(folder, "specification.json")
            wanted = {
                **run._asdict(),
                "script": str(run.script),
                "arguments": list(run.arguments),
                "target": list(run.target),
                "work": str(work),
                "out": str(out),
                "output": str(output),
            }
            specification.write_text(json.dumps(wanted), encoding="utf-8")
            code = self._job(run, specification, wanted) if run.target.workers > 1 else self._forked(specification)
            if code is None:
                raise NotRunError(
                    f"{run.script.name} was not done after {run.limit_s:g} s on {run.target}. Give it more time "
                    "(--limit), or certify fewer steps."
                )
            paths = sorted(out.glob("*.json"))
            if not paths:
                text = output.read_text(encoding="utf-8", errors="replace") if output.exists() else ""
                raise NotRunError(
                    f"{run.script.name} left no recording on {run.target} (exit code {code}). It ended with:\n"
                    f"{text[-2000:]}"
                )
            return Recording.read(paths)

    def _forked(self, specification: Path) -> int | None:
        """Returns the exit code of a run in a fork; None if it was not done in time."""
        if self._process is None:
            command = [sys.executable, "-m", _MODULE]
            # In a group of its own: Ctrl-C in the terminal is for the process that asked, which ends this one.
            self._process = subprocess.Popen(
                command,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{specification}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()  # The limit is the process's to hold.
        if not answer:
            raise NotRunError(f"The process that runs scripts has ended with the code {self._process.wait()}.")
        code: int | None = json.loads(answer)
        return code

    def _job(self, run: Run, specification: Path, wanted: dict[str, object]) -> int | None:
        """Returns the exit code of a job of workers; None if it was not done in time."""
        launcher = ["run", "--workers", str(run.target.workers), "--log-dir", str(specification.with_name("logs"))]
        command = [sys.executable, "-m", "replicax", *launcher, "-m", _MODULE, str(specification)]
        with (
            open(str(wanted["output"]), "wb") as output,
            subprocess.Popen(
                command, cwd=str(wanted["work"]), env=self._environment, stdout=output, stderr=subprocess.STDOUT
            ) as process,
        ):
            try:
                return process.wait(run.limit_s)
            except subprocess.TimeoutExpired:
                return None
            finally:
                if process.poll() is None:
                    process.terminate()  # The launcher ends its workers.
                    try:
                        process.wait(30)
                    except subprocess.TimeoutExpired:
                        process.kill()


def _environment() -> dict[str, str]:
    found = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "PYTHONDONTWRITEBYTECODE": "1"}
    # The runner makes the devices; a variable would make others, or be the worker of a job around this one.
    environment = {name: value for name, value in found.items() if name not in ("JAX_NUM_CPU_DEVICES", "TF_CONFIG")}
    flags = [flag for flag in found.get("XLA_FLAGS", "").split() if "device_count" not in flag]
    environment["XLA_FLAGS"] = " ".join(flags)
    source = str(Path(__file__).parents[3])  # The runner runs elsewhere, and is to be this replicax.
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (source, found.get("PYTHONPATH"))))
    return environment
