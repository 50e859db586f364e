"""Who trains together, as far as one process shows it. (tests/multiprocess has the rest.)"""

import json

import jax
import pytest

import replicax as rx
from replicax.errors import ArgumentError
from replicax.strategies import workers
from replicax.strategies.workers import Workers


@pytest.fixture
def started(monkeypatch):
    """The arguments with which the cluster would have been started."""
    found = []
    monkeypatch.setattr(workers, "start", lambda cluster, start, stall: found.append((start, stall)) or [])
    return found


@pytest.mark.parametrize("make", [rx.FullyShardedStrategy, rx.LayoutStrategy])
def test_without_devices_the_environment_says_who_trains(started, make):
    strategy = make(start_timeout=7, stall_timeout=20)
    assert started == [(7, 20)]
    assert (strategy.workers, strategy.worker_index, strategy.is_chief) == (("worker:0",), 0, True)
    assert strategy.num_replicas_in_sync == len(jax.devices())


def test_devices_that_are_given_wait_for_nobody(started):
    strategy = rx.FullyShardedStrategy(["cpu:0", "cpu:1"])
    assert started == []
    assert strategy.num_workers == 1
    with pytest.raises(ArgumentError, match="waits for no other"):
        rx.FullyShardedStrategy(2, communication_options=rx.CommunicationOptions(timeout_seconds=20))


def test_the_options_timeout_is_the_stall_timeout(started):
    rx.FullyShardedStrategy(communication_options=rx.CommunicationOptions(timeout_seconds=20))
    assert [stall for _, stall in started] == [20.0]
    with pytest.raises(ArgumentError, match="one setting"):
        rx.FullyShardedStrategy(communication_options=rx.CommunicationOptions(timeout_seconds=20), stall_timeout=30)


class _Device:
    def __init__(self, process: int):
        self.process_index = process


@pytest.mark.parametrize(("processes", "message"), [([0, 1], r"processes \[2\] have none"), ([2, 1, 0], "process 2")])
def test_a_mesh_that_some_could_not_follow_is_refused(monkeypatch, processes, message):
    monkeypatch.setattr(jax, "process_count", lambda: 3)
    with pytest.raises(ArgumentError, match=message):
        Workers.of([_Device(process) for process in processes], None, 1, 1)


def test_a_resolver_with_devices_of_this_process_is_refused(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ArgumentError, match="waits for no other"):
        Workers.of(jax.devices(), rx.cluster_resolver.TFConfigClusterResolver(), 1, 1)


def test_processes_that_others_have_connected_have_names(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    found = Workers.of([_Device(0), _Device(1)], None, 1, 1)
    assert found.names == ("worker:0", "worker:1")
    assert (found.config.process_id, found.config.num_processes, found.config.is_chief) == (0, 2, True)


LAUNCHED = {
    "REPLICAX_COORDINATOR": "127.0.0.1:8888",
    "REPLICAX_NUM_PROCESSES": "2",
    "REPLICAX_PROCESS_ID": "1",
}
TASKS = {"worker": ["127.0.0.1:1", "127.0.0.1:2"], "chief": ["127.0.0.1:3"]}


@pytest.mark.parametrize("kind", [rx.MirroredStrategy, rx.CentralStorageStrategy])
@pytest.mark.parametrize(
    "variables",
    [
        LAUNCHED,
        {"TF_CONFIG": json.dumps({"cluster": TASKS, "task": {"type": "worker", "index": 1}})},
        {"JAX_COORDINATOR_ADDRESS": "127.0.0.1:8888", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "0"},
    ],
    ids=["replicax", "TF_CONFIG", "JAX"],
)
def test_a_strategy_of_one_process_does_not_train_beside_others(monkeypatch, kind, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(rx.errors.ClusterError, match=r"rx\.MultiWorkerMirroredStrategy\(\)") as error:
        kind()
    assert f"rx.{kind.__name__}(" in str(error.value)
    assert kind(jax.local_devices()).num_replicas_in_sync == 8
    assert kind(2).num_replicas_in_sync == 2


@pytest.mark.parametrize("kind", [rx.MirroredStrategy, rx.CentralStorageStrategy])
def test_nor_does_it_where_the_script_has_connected_jax(monkeypatch, kind):
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr("replicax.strategies.workers.connected_as", lambda: (1, 2))
    with pytest.raises(rx.errors.ClusterError, match=r"process 1 of 2 that jax.distributed connects"):
        kind()
    assert kind(jax.local_devices()).num_replicas_in_sync == 8
    monkeypatch.setattr("replicax.group.health.running", object)  # Beside a strategy of all workers.
    assert kind().num_replicas_in_sync == 8


@pytest.mark.parametrize(
    ("tasks", "task"), [(TASKS, "evaluator"), ({**TASKS, "ps": ["127.0.0.1:4"]}, "chief")], ids=["evaluator", "servers"]
)
def test_a_process_that_trains_alone_in_its_cluster_may(monkeypatch, tasks, task):
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": tasks, "task": {"type": task, "index": 0}}))
    assert rx.MirroredStrategy().num_replicas_in_sync == 8
