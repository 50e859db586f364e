"""Three ways to connect with Ray: a node within this process, an existing cluster, or a cluster made of tasks.

Each returns a stack; closing it ends the connection, and the node that was started for it.
"""

from __future__ import annotations

import contextlib
import logging
import os
from types import ModuleType

from replicax.cluster import ClusterSpec, Task, parse_address
from replicax.cluster.addresses import join_address
from replicax.cluster.own_address import LOOPBACK, is_mine
from replicax.cluster.patience import Patience
from replicax.compat.ray import (
    NodeOptions,
    admits_anybody,
    end_node_at_once,
    forget_token,
    node_options,
    waiting_for_node,
)
from replicax.errors import ClusterError
from replicax.ray_cluster.actor_placement import alive_resources
from replicax.ray_cluster.authentication import MODE, optional_token, own_token, shared_token
from replicax.ray_cluster.calls_with_deadline import done_within
from replicax.ray_cluster.deadline import PATIENCE, Deadline, wait_for
from replicax.ray_cluster.folder import Folder
from replicax.ray_cluster.head import limit, outliving
from replicax.ray_cluster.memory import object_store_memory
from replicax.ray_cluster.nodes import HEAD_LIMIT, SETTINGS, Node, answers, head_ip, node_ip, visitor_arguments
from replicax.ray_cluster.ray_environment import leave_unfinished, starting
from replicax.ray_cluster.tasks import (
    COORDINATOR,
    describe,
    head_address,
    missing_tasks,
    serving_tasks,
)

_log = logging.getLogger(__name__)
# JAX would take most of a GPU's memory for the first of several workers that share it.
# Gradients go through the object store at every step: its pages are made at the start, and not while they wait.
_READY_MEMORY = {"RAY_preallocate_plasma_memory": "1"}
_SHARED_GPU = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
_OPEN = (
    "The Ray cluster at %s asks for no token: whoever reaches its port can run code on its machines. Start its nodes "
    "with RAY_AUTH_MODE=token and RAY_AUTH_TOKEN, the value of REPLICAX_TOKEN here."
)
_CONNECTION = {"logging_level": logging.WARNING, "log_to_driver": True}


def embed(dashboard: bool, patience: Patience = PATIENCE) -> contextlib.ExitStack:
    """Starts a Ray node that belongs to this process and listens on the loopback address only."""
    try:
        return _embed(dashboard, patience)
    except ClusterError as error:
        if not _is_too_slow(error):
            raise
        _log.warning("Ray has not come up within %g s; it is started again, with twice the time.", patience.start)
    return _embed(dashboard, patience._replace(start=2 * patience.start))


def _is_too_slow(error: ClusterError) -> bool:
    """Returns whether Ray has given up waiting for its own processes; it raises a bare `Exception` then."""
    return type(error.__cause__) is Exception


def _embed(dashboard: bool, patience: Patience) -> contextlib.ExitStack:
    with contextlib.ExitStack() as ending:
        folder = Folder()
        ending.callback(folder.close)
        defaults = {**SETTINGS, **_SHARED_GPU, **_READY_MEMORY}
        with (
            starting(
                {**own_token(os.environ), **folder.environment, **outliving(limit(default=HEAD_LIMIT))},
                defaults,
                LOOPBACK,
            ) as ray,
            waiting_for_node(patience.start),
        ):
            _disconnect_by(ending, ray, folder, patience)
            _init(
                ray,
                "local",
                **node_options(folder.path, LOOPBACK),
                object_store_memory=object_store_memory(),
                include_dashboard=None if dashboard else False,
            )
        return ending.pop_all()


def attach(address: str, deadline: Deadline, who: str = COORDINATOR) -> contextlib.ExitStack:
    """Connects with an existing Ray cluster."""
    token = optional_token(os.environ)
    if ":" in address and not address.startswith("ray://"):  # Ray looks itself for "auto".
        wait_for(lambda: [] if answers(address) else ["the head of the Ray cluster"], 1, who, address, deadline)
        # With a token this process would not let the cluster in: Ray takes it for dead, and ends its actors.
        if token.get(MODE) == "token" and admits_anybody(address, PATIENCE.silence):
            _log.warning(_OPEN, address)
            token = {MODE: "disabled"}
    with contextlib.ExitStack() as ending:
        with starting({**token, **outliving(limit())}) as ray:
            _disconnect_by(ending, ray)
            _init(ray, address, **_logs_for(who))
        return ending.pop_all()


def attach_to_tasks(
    spec: ClusterSpec, deadline: Deadline, connected: bool, who: str = COORDINATOR, waits: bool = True
) -> contextlib.ExitStack:
    """Connects with the Ray cluster of these tasks, and waits until all of them are there, unless it need not."""
    with contextlib.ExitStack() as ending:
        if not connected:
            _connect_with_head(spec, ending, deadline, who)

        def missing() -> list[str]:
            if not answers(head_address(spec)):  # It has ended meanwhile.
                return [describe(spec, task) for task in serving_tasks(spec)]
            there = {name for resources in alive_resources(deadline.left + PATIENCE.silence) for name in resources}
            return [describe(spec, task) for task in missing_tasks(spec, there)]

        if waits:
            wait_for(missing, len(serving_tasks(spec)), who, head_address(spec), deadline)
        return ending.pop_all()


def _connect_with_head(spec: ClusterSpec, ending: contextlib.ExitStack, deadline: Deadline, who: str) -> None:
    token = shared_token(os.environ)
    head = head_address(spec)
    names = [describe(spec, task) for task in serving_tasks(spec)]
    wait_for(lambda: [] if answers(head) else names, len(names), who, head, deadline)
    ip = own = head_ip(spec)
    own_node = NodeOptions()
    if not is_mine(ip):  # A driver needs a node on its own machine, and one that does not end with a worker.
        own = node_ip(spec, Task(who, 0), deadline.left)  # No task serves under this name.
        node = Node(who, visitor_arguments(spec), own, token, deadline.left)
        ending.callback(node.stop)
        own_node = node_options(node.folder.path)
    with starting({**token, **outliving(limit(default=HEAD_LIMIT))}, SETTINGS, own) as ray:
        _disconnect_by(ending, ray)
        _init(ray, join_address(ip, parse_address(head, "address").port), **own_node, **_logs_for(who))


def _logs_for(who: str) -> dict[str, bool]:
    """Returns the options of a connection: only a coordinator shows what the processes there write to their logs."""
    return {} if who == COORDINATOR else {"log_to_driver": False}


def _init(ray: ModuleType, address: str, **options: object) -> None:
    if address.startswith("ray://"):
        options = {"logging_level": _CONNECTION["logging_level"], **options}
    else:
        options = {**_CONNECTION, **options}
    try:
        ray.init(address=address, **options)
    except Exception as error:  # Ray raises of any kind, bare ones among them.
        own = "This machine may be too busy: give the strategy a longer `start_timeout`."
        theirs = "Is it there, can this machine reach it, and has it the same token (REPLICAX_TOKEN) and versions?"
        raise ClusterError(
            "The Ray cluster",
            address,
            f"cannot be connected with: {error}",
            own if address == "local" else theirs,
        ) from error


def _disconnect_by(
    ending: contextlib.ExitStack, ray: ModuleType, folder: Folder | None = None, patience: Patience = PATIENCE
) -> None:
    ending.callback(forget_token)
    ending.callback(_shut_down, ray, folder, patience)


def _shut_down(ray: ModuleType, folder: Folder | None, patience: Patience) -> None:
    """Ends the connection and the node in the folder, even if Ray's processes are stopped and do not answer."""
    if folder is not None:
        end_node_at_once()  # The folder takes what these processes have started with it.
    if done_within(patience.end, ray.shutdown):
        return
    _log.warning("Ray has not answered for %g s: its processes are killed.", patience.end)
    if folder is not None:
        folder.close()
    leave_unfinished()
