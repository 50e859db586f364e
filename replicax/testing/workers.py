"""Runs a function in several real processes, as a cluster on this machine."""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
import re
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from replicax.checks import checked, checked_seconds, explained
from replicax.checks.environment_names import TEST_LOGS
from replicax.errors import ArgumentError, WorkersFailedError
from replicax.errors.exit_codes import describe
from replicax.job.launching.timed import Outcome, run_in_time
from replicax.job.options import Options
from replicax.job.plan import flags_for_workers
from replicax.testing import program
from replicax.testing.arguments import encoded
from replicax.typing import PyTree

# The folder for the logs of all tests; the plugin's option --replicax-logs sets it.
_LINES_SHOWN = 80
_SECONDS_TO_END = 2.0  # the workers' grace
_REQUEST = "request.json"


@checked
def free_ports(count: int) -> list[int]:
    """Returns ports of 127.0.0.1 that are free now. Other processes may take them.

    Example:
        >>> len(set(rx.testing.free_ports(3)))
        3
    """
    with contextlib.ExitStack() as sockets:
        opened = [sockets.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in opened]


@checked
def run_workers(
    function: Callable[..., object], workers: int = 2, devices: int = 1, timeout: float = 120, **arguments: object
) -> list[PyTree]:
    """Calls a function in several processes, which are the workers of a cluster on this machine.

    Each has its own TF_CONFIG (and JAX's variables), ports that no other process uses, and virtual CPU devices. In the
    function, `rx.MultiWorkerMirroredStrategy()` joins them.

    Args:
        function: A function at the top of a module. Its result must be plain data that JSON can hold.
        workers: Number of processes.
        devices: Virtual devices of each.
        timeout: Seconds until all are ended.
        **arguments: Arguments of the function: numbers, strings, paths, and lists, tuples and dicts of these.

    Returns:
        The result of each worker, in order.

    Raises:
        WorkersFailedError: A worker failed, or they took too long. The error shows the last output of each, and after a
            timeout all stacks. It is an AssertionError too.
        ArgumentError: The function or an argument cannot go to another process.

    Example:
        >>> rx.testing.run_workers(train, workers=2)  # doctest: +SKIP
    """
    return Cluster().run(function, workers, devices, timeout, **arguments)


@checked
class Cluster:
    """Runs functions in several processes, as `run_workers` does; the fixture `cluster` is one.

    Args:
        log_dir: The folder for the workers' output, with a subfolder for each call; None for no logs.

    Example:
        >>> def test_index(cluster):  # a test of your own; pytest gives it the fixture
        ...     assert cluster.run(worker_index, workers=2) == [0, 1]
    """

    def __init__(self, log_dir: Path | None = None):
        self._log_dir = log_dir

    def run(
        self,
        function: Callable[..., object],
        workers: int = 2,
        devices: int = 1,
        timeout: float = 120,
        **arguments: object,
    ) -> list[PyTree]:
        """Calls a function in several processes; see `run_workers`."""
        return call(function, workers, devices, timeout, arguments, log_dir=self._log_dir)


def call(
    function: Callable[..., object],
    workers: int,
    devices: int,
    timeout: float,
    arguments: dict[str, object],
    wants_result: bool = True,
    log_dir: Path | None = None,
) -> list[PyTree]:
    """Does what `run_workers` does. Without `wants_result` it returns None for each worker."""
    timeout = checked_seconds("timeout", timeout)
    request = {
        **_named(function),
        "path": [os.path.abspath(folder) for folder in sys.path],
        "devices": devices,
        "arguments": {name: encoded(name, value) for name, value in arguments.items()},
        "wants_result": wants_result,
    }
    environment = {**os.environ, "XLA_FLAGS": flags_for_workers(os.environ.get("XLA_FLAGS", ""))}
    with tempfile.TemporaryDirectory() as folder, _logs(function, log_dir, folder) as logs:
        Path(folder, _REQUEST).write_text(json.dumps(request), encoding="utf-8")
        options = Options(
            program.__file__,
            (str(Path(folder, _REQUEST)),),
            workers=workers,
            devices_per_worker=devices,
            grace=_SECONDS_TO_END,
        )
        outcome = run_in_time(options, logs, timeout, environment)
        if outcome.code or outcome.timed_out:
            raise _failure(function.__name__, outcome, timeout)
        results = [Path(folder, f"{worker}.json") for worker in range(workers)]
        return [json.loads(path.read_text(encoding="utf-8")) if wants_result else None for path in results]


def _named(function: Callable[..., object]) -> dict[str, str]:
    """Returns what a worker needs to find the function."""
    plain = inspect.unwrap(function)
    if not inspect.isfunction(plain) or "<" in plain.__qualname__ or inspect.iscoroutinefunction(plain):
        raise ArgumentError(
            f"The workers find a function by its name at the top of its module, so {function!r:.100} cannot go there: "
            "write it with `def` (not `async def`, not a lambda) outside of other functions."
        )
    module = sys.modules[plain.__module__]
    return {"module": module.__name__, "file": inspect.getfile(plain), "function": plain.__qualname__}


@contextlib.contextmanager
def _logs(function: Callable[..., object], log_dir: Path | None, folder: str) -> Iterator[Path]:
    """Yields a folder for the logs: a new one if they are kept, otherwise the temporary one."""
    kept = os.environ.get(TEST_LOGS)
    base = log_dir or (Path(kept) if kept else None)
    if base is None:
        yield Path(folder)
        return
    base.mkdir(parents=True, exist_ok=True)
    yield Path(tempfile.mkdtemp(prefix=f"{re.sub('[^A-Za-z0-9_]', '-', function.__name__)}-", dir=base))


def _failure(name: str, outcome: Outcome, timeout: float) -> WorkersFailedError:
    logs = {
        task: path.read_text(errors="replace", encoding="utf-8") if path.exists() else ""
        for task, path in outcome.logs.items()
    }
    if outcome.timed_out:
        problem = f"was not done after {timeout:g} s; the end of each log shows where its worker was"
    else:
        problem = f"failed first in {outcome.failed}: {describe(outcome.code)}"
    return WorkersFailedError(name, problem, {task: _end(log) for task, log in logs.items()}, outcome.timed_out)


def _end(log: str) -> str:
    lines = log.splitlines()
    left_out = len(lines) - _LINES_SHOWN
    return "\n".join([f"... ({left_out} lines before)", *lines[-_LINES_SHOWN:]] if left_out > 0 else lines)


@explained
def distributed(
    workers: int = 2, devices: int = 1, timeout: float = 120
) -> Callable[[Callable[..., object]], Callable[..., None]]:
    """Runs a test in the workers of a cluster on this machine; each worker is a process.

    Every worker runs the whole body of the test, with its own TF_CONFIG and virtual CPU devices, so that
    `rx.MultiWorkerMirroredStrategy()` joins them. The test passes if it passes in all of them. If it fails in one, or
    takes too long, all are ended, and the error shows the last output of each; after a timeout also all stacks. The
    result of the test is ignored.

    Fixtures and parameters can be numbers, strings, paths (`tmp_path`), or lists, tuples and dicts of these. The
    process of pytest makes them once. Each worker imports the module of the test, without `conftest.py`.

    Args:
        workers: Number of processes.
        devices: Virtual devices of each.
        timeout: Seconds until all are ended. It should be less than pytest's own.

    Raises:
        WorkersFailedError: The test failed in a worker, or took too long.
        ArgumentError: A fixture or the test itself cannot go to other processes.

    Example:
        >>> @distributed(workers=2, devices=2)
        ... def test_all_devices_are_there():
        ...     strategy = rx.MultiWorkerMirroredStrategy()
        ...     assert strategy.num_replicas_in_sync == 4
    """
    if callable(workers):
        raise ArgumentError("Write @rx.testing.distributed(), with its brackets, above the test.")

    def decorate(test: Callable[..., object]) -> Callable[..., None]:
        names = list(inspect.signature(test).parameters)

        @functools.wraps(test)
        def run(*args: object, **kwargs: object) -> None:
            given = {**dict(zip(names, args, strict=False)), **kwargs}
            given.pop("self", None)  # Each worker makes its own object of the class.
            call(test, workers, devices, timeout, given, wants_result=False)

        return run

    return decorate
