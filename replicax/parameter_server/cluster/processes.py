"""Ending processes of actors, wherever they are."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Any

_SECONDS_TO_KILL = 10.0


def end_process(node_id: str, pid: int) -> None:
    """Kills a process on a node. If the process or the node has gone, nothing happens.

    Args:
        node_id: The node, in hex.
        pid: Number of the process there.
    """
    import ray

    if not ray.util.client.ray.is_connected() and ray.get_runtime_context().get_node_id() == node_id:
        kill(pid)
    elif any(node["NodeID"] == node_id and node["Alive"] for node in ray.nodes()):
        _kill_at(ray, node_id, pid)


def kill(pid: int) -> None:
    """Kills a process of this machine."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _kill_at(ray: Any, node_id: str, pid: int) -> None:
    there = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node_id, soft=False)
    task = ray.remote(kill).options(num_cpus=0, max_retries=0, scheduling_strategy=there)
    with contextlib.suppress(ray.exceptions.RayError):  # The node has gone in between, and the process with it.
        ray.get(task.remote(pid), timeout=_SECONDS_TO_KILL)
