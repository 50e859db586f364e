"""Imports Ray when it is needed, and sets its environment variables only while it starts."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from types import ModuleType

from replicax.compat.ray import forget_shutdown, forget_token, node_address, restore_excepthook
from replicax.errors import ClusterError

# Ray reports nothing to its makers and uploads nothing to workers.
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}


def import_ray() -> ModuleType:
    """Returns the module `ray`."""
    try:
        with variables(QUIET):
            import ray
    except ImportError as error:
        raise ClusterError(
            "ray", None, f"cannot be imported ({error})", "Install it: pip install 'replicax[ray]'."
        ) from error
    restore_excepthook()
    return ray


def leave_unfinished() -> None:
    """Lets this process end, with its own exit code, although `ray.shutdown` has not come to its end."""
    forget_shutdown()  # It would be called again.
    # Threads of Ray's still run, and crash when exit() takes down the C++ objects that they use: so that is left out.
    library = ctypes.CDLL(None)
    with contextlib.suppress(AttributeError):  # Only GNU's C library tells such a function the exit code.
        library.on_exit(library._exit, None)


@contextlib.contextmanager
def variables(values: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables while the block runs. Restores all of them afterwards, also those that Ray has set."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


@contextlib.contextmanager
def starting(
    values: Mapping[str, str], defaults: Mapping[str, str] = QUIET, ip: str | None = None
) -> Iterator[ModuleType]:
    """Yields the module `ray`, ready for `ray.init`; the user's own variables replace `defaults`, but not `values`."""
    ray = import_ray()
    own = {name: os.environ.get(name, value) for name, value in defaults.items()}
    with variables({**own, **values}):
        forget_token()
        with _sigterm_kept(), node_address(ip):
            yield ray


@contextlib.contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Puts the handler of SIGTERM back afterwards: `ray.init` replaces it, and would swallow a preemption's notice."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)
