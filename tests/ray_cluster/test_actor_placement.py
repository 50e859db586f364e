from __future__ import annotations

import pytest

from replicax.ray_cluster import actor_placement as placement
from replicax.ray_cluster.actor_placement import ByTask, OneNode, Spread, gpu_share
from replicax.ray_cluster.task_counts import TaskCounts

HERE = {"num_cpus": 0, "enable_task_events": False}


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, float]]:
    """The nodes that are alive, in place of Ray's."""
    alive: list[dict[str, float]] = []
    monkeypatch.setattr(placement, "alive_resources", lambda: alive)
    return alive


@pytest.mark.parametrize(
    ("gpus", "workers", "share"), [(0, 2, 0), (8, 4, 2), (8, 3, 2), (1, 2, 0.5), (2, 3, 0.5), (3, 7, 1 / 3)]
)
def test_gpus_are_shared_evenly_and_all_workers_fit(gpus, workers, share):
    assert gpu_share(gpus, workers) == share
    fit = gpus // share if share >= 1 else gpus * int(1 / share) if share else workers
    assert fit >= workers


def test_tasks_on_one_node_wait_for_nothing(nodes):
    assert OneNode(TaskCounts(2, 1)).options("worker", 1) == HERE
    nodes.append({"CPU": 2, "GPU": 2})
    assert OneNode(TaskCounts(2, 1)).options("worker", 1) == {**HERE, "num_gpus": 1}
    assert OneNode(TaskCounts(2, 1)).options("ps", 0) == HERE


def test_tasks_are_spread_over_nodes_that_have_no_names(nodes):
    assert Spread(TaskCounts(2, 1)).options("ps", 0) == {**HERE, "scheduling_strategy": "SPREAD"}


def test_tasks_go_to_their_nodes_also_when_these_are_away(nodes):
    by_task = ByTask()
    assert by_task.options("worker", 1) == {**HERE, "resources": {"replicax_worker_1": 0.001}}
    nodes.append({"GPU": 4, "replicax_worker_1": 1})
    with_gpus = {**HERE, "resources": {"replicax_worker_1": 0.001}, "num_gpus": 4}
    assert by_task.options("worker", 1) == with_gpus
    nodes.clear()
    assert by_task.options("worker", 1) == with_gpus
    assert by_task.options("ps", 0) == {**HERE, "resources": {"replicax_ps_0": 0.001}}
