"""The decorator that lets the body of a test run in several processes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from replicax.errors import ArgumentError
from replicax.testing.workers import call


def distributed(workers: int = 2, devices: int = 1, timeout: float = 120) -> Callable[..., Any]:
    """Lets a test run in the workers of a cluster on this machine, each a process of its own.

    Every worker runs the whole body of the test. Each has a TF_CONFIG of its own and virtual CPU devices, so that
    `rx.MultiWorkerMirroredStrategy()` joins them. The test passes if it passes in all of them. If it fails in one, or
    is not done in time, all are ended, and the error shows what each printed last; if the time was up, the stacks of
    all. What the test returns is ignored.

    Fixtures and parameters work if they are numbers, strings, paths (`tmp_path`), or lists, tuples and dicts of these.
    They are made once, in the process of pytest. The module of the test is imported in each worker, without
    `conftest.py`.

    Args:
        workers: Number of processes.
        devices: Virtual devices of each.
        timeout: Seconds until all are ended. Let it be less than that of pytest itself.

    Raises:
        WorkersFailedError: When the test is called: it failed in a worker, or the time was up.
        ArgumentError: When the test is called: a fixture cannot go to other processes, or the test cannot.

    Example:
        >>> @distributed(workers=2, devices=2)
        ... def test_all_devices_are_there():
        ...     strategy = rx.MultiWorkerMirroredStrategy()
        ...     assert strategy.num_replicas_in_sync == 4
    """
    if callable(workers):
        raise ArgumentError("Write @rx.testing.distributed(), with its brackets, above the test.")

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        names = list(inspect.signature(test).parameters)

        @functools.wraps(test)
        def run(*args: Any, **kwargs: Any) -> None:
            given = {**dict(zip(names, args, strict=False)), **kwargs}
            given.pop("self", None)  # Each worker makes an object of the class for itself.
            call(test, workers, devices, timeout, given, wants_result=False)

        return run

    return decorate
