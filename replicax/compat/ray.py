"""Private names of Ray, and patches of it. Read in Ray 2.60.

Ray is imported when it is asked, not before. `tests/compat/test_ray.py` names what a newer Ray lacks. Most functions
here do nothing then, so that a cluster still starts, by Ray's own rules.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, TypedDict

from replicax.compat.ray_node import NODE, NODE_IP_ADDRESS, patient


class NodeOptions(TypedDict, total=False):
    """Arguments of `ray.init` that Ray documents for its own tests only."""

    _node_ip_address: str
    _temp_dir: str


def node_options(folder: str, ip: str | None = None) -> NodeOptions:
    """Returns what `ray.init` is given besides: where a node that it starts keeps its files, and where it listens."""
    # Ray's own folder would be shared by all users of the machine. Without the arguments: `ray start --temp-dir
    # --node-ip-address` in a process of its own, as for other nodes.
    return NodeOptions(_temp_dir=folder) if ip is None else NodeOptions(_temp_dir=folder, _node_ip_address=ip)


def restore_excepthook() -> None:
    """Makes Python report uncaught errors itself again."""
    # `import ray` makes it send them to Ray's head first; if the head is stopped, they never appear. Without the name:
    # `sys.excepthook` is put back to what it was before the import.
    worker = importlib.import_module("ray._private.worker")
    if sys.excepthook is getattr(worker, "custom_excepthook", None):
        sys.excepthook = worker.normal_excepthook


def forget_shutdown() -> None:
    """Lets Python's exit not call `ray.shutdown`. Without the name: `os._exit` in a handler that is registered last."""
    atexit.unregister(importlib.import_module("ray._private.worker").shutdown)


def end_node_at_once() -> None:
    """Has `ray.shutdown` kill the processes of the node that it has started, all at once."""
    # Ray asks one after another to end, and gives each a second: most of a short script's end. The caller ends what
    # these processes have started themselves. Without the names: the end takes longer.
    node: Any = getattr(importlib.import_module("ray._private.worker"), "_global_node", None)
    living, wait_for_all = getattr(node, "live_processes", None), getattr(node, "kill_all_processes", None)
    if living is None or wait_for_all is None:
        return

    def kill_all(**options: bool) -> None:
        for _, process in living():
            process.kill()
        wait_for_all(**options)

    node.kill_all_processes = kill_all


def forget_token() -> None:
    """Lets Ray in this process read token and mode anew from the environment; it keeps those of an earlier cluster."""
    # Without the names: a process that has been in one cluster cannot join another one with another token.
    with contextlib.suppress(ImportError, AttributeError):
        raylet = importlib.import_module("ray._raylet")
        raylet.Config.initialize("")  # In this order: a thread that still ends may ask for the token in between.
        raylet.AuthenticationTokenLoader.instance().reset_cache()


def admits_anybody(address: str, timeout_s: float) -> bool:
    """Returns whether the head of a Ray cluster, `host:port`, answers a call that comes without a token."""
    # Without the method: False, and who has a token cannot train on such a cluster.
    import grpc

    with grpc.insecure_channel(address, [("grpc.enable_http_proxy", 0)]) as channel:
        try:
            channel.unary_unary("/ray.rpc.NodeInfoGcsService/CheckAlive")(b"", timeout=timeout_s)
        except grpc.RpcError:
            return False
    return True


def is_draining() -> bool:
    """Returns whether Ray was told that the node of this process, an actor, is about to go."""
    # Without the names: nobody is told, and a node that goes is a loss. Ray's public functions tell it nowhere.
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return False
    state: Any = getattr(importlib.import_module("ray._private.state"), "state", None)
    draining = getattr(state, "get_draining_nodes", dict)
    try:
        return ray.get_runtime_context().get_node_id() in draining()
    except Exception:  # Ray raises of any kind, for example while its head is out of reach.
        return False


@contextlib.contextmanager
def waiting_for_node(seconds: float) -> Iterator[None]:
    """Lets Ray wait longer for its own processes to come up than its 30 s, while the block runs."""
    # Without the function: the start is tried again.
    before = getattr(_services(), NODE, None)
    with _replaced(NODE, None if before is None else patient(before, seconds)):
        yield


@contextlib.contextmanager
def node_address(ip: str | None) -> Iterator[None]:
    """Lets Ray take `ip` for this machine's address while the block runs; None changes nothing."""
    # Without the function: `ray.init(_node_ip_address=...)`, which takes 127.0.0.1 for the machine's address instead.
    with _replaced(NODE_IP_ADDRESS, None if ip is None else lambda *_, **__: ip):
        yield


@contextlib.contextmanager
def _replaced(name: str, function: Callable[..., object] | None) -> Iterator[None]:
    """Puts a function in the place of one of Ray's `services` while the block runs."""
    services = _services()
    before = getattr(services, name, None)
    if function is None or before is None:
        yield
        return
    setattr(services, name, function)
    try:
        yield
    finally:
        setattr(services, name, before)


def _services() -> ModuleType:
    return importlib.import_module("ray._private.services")
