"""Ends the processes of actors on whichever node they are."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from replicax.cluster.patience import Patience
from replicax.ray_cluster.calls_with_deadline import done_within
from replicax.ray_cluster.deadline import PATIENCE

if TYPE_CHECKING:
    from ray.actor import ActorHandle

_TITLE = b"ray::"  # Ray's processes of actors and tasks are called so.


def end_actor(handle: ActorHandle[object], patience: Patience = PATIENCE) -> bool:
    """Lets Ray kill an actor; returns whether Ray has taken the order. It does not while its head is out of reach."""
    import ray

    return done_within(patience.silence, lambda: ray.kill(handle))


def end_process(node_id: str, pid: int) -> None:
    """Kills a process on a node. Nothing happens if either is gone or unreachable."""
    import ray

    if not ray.util.client.ray.is_connected() and ray.get_runtime_context().get_node_id() == node_id:
        kill(pid)
        return
    alive: set[str] = set()
    if done_within(PATIENCE.silence, lambda: alive.update(_alive_nodes())) and node_id in alive:
        done_within(PATIENCE.silence + PATIENCE.end, lambda: _kill_at(node_id, pid))


def _alive_nodes() -> list[str]:
    import ray

    return [node["NodeID"] for node in ray.nodes() if node["Alive"]]


def kill(pid: int) -> None:
    """Kills a process of an actor on this machine, unless its number is somebody else's by now (Linux)."""
    proc = Path("/proc")
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        # The number may even be that of a thread, and a signal to that goes to its whole process.
        if (proc / "self").exists() and not (proc / str(pid) / "cmdline").read_bytes().startswith(_TITLE):
            return
        os.kill(pid, signal.SIGKILL)


def _kill_at(node_id: str, pid: int) -> None:
    import ray

    there = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node_id, soft=False)
    task = ray.remote(kill).options(num_cpus=0, max_retries=0, scheduling_strategy=there)
    with contextlib.suppress(ray.exceptions.RayError):  # The node has gone in between, and the process with it.
        ray.get(task.remote(pid), timeout=PATIENCE.end)
