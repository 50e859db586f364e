"""A call in a process of its own beside this one: the evaluator of workers that train for a client elsewhere."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from types import TracebackType
from typing import BinaryIO, cast

from replicax.compat.systems import check_system
from replicax.errors import EstimatorError
from replicax.job.processes import child
from replicax.job.processes.call import Raised, Returned, error_of, result_of
from replicax.job.processes.task import EVALUATOR

# Of the workers' cluster: an evaluator is none of them.
_OF_THE_WORKERS = (
    "JAX_COORDINATOR_ADDRESS",
    "JAX_COORDINATOR_BIND_ADDRESS",
    "JAX_NUM_PROCESSES",
    "JAX_PROCESS_ID",
)


class Beside:
    """A process that runs a call pickled by `payload_of`, and ends with this one. A context manager, which ends it."""

    def __init__(self, payload: bytes, environ: Mapping[str, str] | None = None):
        check_system()  # LaunchError on Windows, which cannot run the processes of a job.
        self._files = contextlib.ExitStack()
        self._result, self._news = _file(self._files), _file(self._files)
        with tempfile.TemporaryFile() as call:
            call.write(payload)
            call.seek(0)
            files = [call.fileno(), self._result.fileno(), self._news.fileno()]
            told = [str(os.getpid()), str(files[2]), "call", f"{files[0]}:{files[1]}", "result"]
            self._process = subprocess.Popen(
                [sys.executable, child.__file__, *told],
                env=evaluator_environment(os.environ if environ is None else environ),
                stdin=subprocess.DEVNULL,
                pass_fds=files,
            )

    def result(self) -> object:
        """Waits for the call and returns its result, or raises what the call has raised."""
        code = self._process.wait()
        for file in (self._result, self._news):
            file.seek(0)
        written, words = self._result.read(), self._news.read().decode(errors="replace")
        found = result_of(written or None)
        if isinstance(found, Returned):
            return found.value
        error = error_of(found) if isinstance(found, Raised) else None
        raise error or EstimatorError(
            f"The evaluator ended with exit code {code} and without a result. {words}".rstrip()
        )

    def __enter__(self) -> Beside:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._files.close()


def _file(files: contextlib.ExitStack) -> BinaryIO:
    return cast(BinaryIO, files.enter_context(tempfile.TemporaryFile()))


def evaluator_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment for the evaluator of a worker's cluster: the accelerators belong to the worker."""
    placed = cast("dict[str, object]", json.loads(environ["TF_CONFIG"]))
    role = {**placed, "task": {"type": EVALUATOR, "index": 0}}
    kept = {name: value for name, value in environ.items() if name not in _OF_THE_WORKERS}
    return {**kept, "TF_CONFIG": json.dumps(role), "JAX_PLATFORMS": "cpu"}
