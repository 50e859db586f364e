"""Ray as this package wants it: imported when it is needed, with its variables set only while it starts."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from replicax.errors import ClusterError
from replicax.ray_cluster.node_process import patient

# Nothing is reported to the makers of Ray, and nothing is uploaded to workers.
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
_ATTRIBUTE = "get_node_ip_address"
_GET_NODE = "get_node"


def import_ray() -> Any:
    """Returns the module `ray`.

    Raises:
        ClusterError: It is not installed.
    """
    try:
        with variables(QUIET):
            import ray
    except ImportError as error:
        raise ClusterError(
            "ray", None, f"cannot be imported ({error})", "Install it: pip install 'replicax[ray]'."
        ) from error
    worker: Any = importlib.import_module("ray._private.worker")
    if sys.excepthook is getattr(worker, "custom_excepthook", None):
        # Ray's tells its head of an error before it tells anybody else; if the head is stopped, nobody ever hears.
        sys.excepthook = worker.normal_excepthook
    return ray


def leave_unfinished() -> None:
    """Lets this process end, with its own exit code, although `ray.shutdown` has not come to its end."""
    worker: Any = importlib.import_module("ray._private.worker")
    atexit.unregister(worker.shutdown)  # It would be called again.
    # Threads of Ray's still run, and crash when exit() takes down the C++ objects that they use: so that is left out.
    library = ctypes.CDLL(None)
    with contextlib.suppress(AttributeError):  # Only GNU's C library tells such a function the exit code.
        library.on_exit(library._exit, None)


@contextlib.contextmanager
def variables(values: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables while the block runs. Afterwards all are as before: Ray sets some of its own."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


@contextlib.contextmanager
def starting(values: Mapping[str, str], defaults: Mapping[str, str] = QUIET, ip: str | None = None) -> Iterator[Any]:
    """Yields the module `ray`, ready for `ray.init` in this block.

    Args:
        values: Variables that Ray's processes, and Ray in this process, shall find.
        defaults: More of them, which the user may have set otherwise.
        ip: The address of this node. Ray would take another one for 127.0.0.1, and listen on all interfaces.
    """
    ray = import_ray()
    own = {name: os.environ.get(name, value) for name, value in defaults.items()}
    with variables({**own, **values}):
        forget_token()
        with _sigterm_kept(), node_address(ip):
            yield ray


@contextlib.contextmanager
def waiting_for_node(seconds: float) -> Iterator[None]:
    """Lets Ray wait longer for its own processes to come up than its 30 s, while the block runs."""
    from ray._private import services

    before: Callable[..., Any] | None = getattr(services, _GET_NODE, None)
    if before is None:
        yield
        return
    setattr(services, _GET_NODE, patient(before, seconds))
    try:
        yield
    finally:
        setattr(services, _GET_NODE, before)


@contextlib.contextmanager
def node_address(ip: str | None) -> Iterator[None]:
    """Lets Ray take `ip` for this machine's address while the block runs; None changes nothing."""
    from ray._private import services

    before: Callable[..., str] | None = getattr(services, _ATTRIBUTE, None)
    if ip is None or before is None:
        yield
        return
    setattr(services, _ATTRIBUTE, lambda *_, **__: ip)
    try:
        yield
    finally:
        setattr(services, _ATTRIBUTE, before)


def forget_token() -> None:
    """Lets Ray in this process read token and mode anew from the environment; it keeps those of an earlier cluster."""
    with contextlib.suppress(ImportError, AttributeError):
        raylet: Any = importlib.import_module("ray._raylet")
        raylet.Config.initialize("")  # In this order: a thread that still ends may ask for the token in between.
        raylet.AuthenticationTokenLoader.instance().reset_cache()


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
