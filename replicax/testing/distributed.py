"""The decorator that runs the body of a test in several processes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable

from replicax.checks import explained
from replicax.errors import ArgumentError
from replicax.testing.workers import call


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
