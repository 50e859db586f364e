"""TensorFlow's keywords of resolvers, coordinators and what else belongs to clusters do here what they do there."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

import replicax as rx
from replicax.ray_cluster import task_server as server_module
from tests.cluster.test_clouds import FakeCompute, FakeKubernetes, pod
from tests.parameter_server.conftest import fake_ray
from tests.parameter_server.fakes import strategy_of
from tests.tensorflow.names.calls import tries

__all__ = ["fake_ray"]

_D = "tf.distribute"
_X = "tf.distribute.experimental"
_R = "tf.distribute.cluster_resolver"
_C = "tf.distribute.coordinator"
_P = "tf.distribute.experimental.partitioners"
_SPEC = "tf.train.ClusterSpec"


@tries(
    f"{_R}.SimpleClusterResolver",
    f"{_R}.UnionResolver",
    f"{_R}.ClusterResolver.master",
    f"{_R}.ClusterResolver.num_accelerators",
    f"{_R}.ClusterResolver.cluster_spec",
)
def test_resolvers_that_the_program_fills(call):
    simple = call(
        f"{_R}.SimpleClusterResolver",
        rx.cluster_resolver.SimpleClusterResolver,
        cluster_spec=rx.cluster_resolver.ClusterSpec({"worker": ["a:1", "b:1"]}),
        master="a:1",
        task_type="worker",
        task_id=1,
        environment="google",
        num_accelerators={"GPU": 2},
        rpc_layer="grpc",
    )
    union = call(
        f"{_R}.UnionResolver",
        lambda **keywords: rx.cluster_resolver.UnionResolver(simple, **keywords),
        rpc_layer="http",
        task_type="worker",
        task_id=1,
    )
    for resolver, layer in ((simple, "grpc"), (union, "http")):
        assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == ("worker", 1, layer)
        assert resolver.environment == "google"
        assert call(f"{_R}.ClusterResolver.cluster_spec", resolver.cluster_spec).num_tasks("worker") == 2
        master = call(f"{_R}.ClusterResolver.master", resolver.master, task_type="worker", task_id=0, rpc_layer="x")
        assert master == "x://a:1"
        found = call(
            f"{_R}.ClusterResolver.num_accelerators",
            resolver.num_accelerators,
            task_type="worker",
            task_id=0,
            config_proto=None,
        )
        assert found == {"GPU": 2} == resolver.num_accelerators("worker", 0, None)


@tries(
    f"{_R}.TFConfigClusterResolver",
    f"{_R}.SageMakerClusterResolver",
    f"{_R}.SlurmClusterResolver",
    f"{_R}.SlurmClusterResolver.get_task_info",
)
def test_resolvers_that_read_the_environment(call, monkeypatch):
    cluster = {"worker": ["a:1", "b:1"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 1}}))
    given = {"task_type": "worker", "task_id": 0, "rpc_layer": "grpc", "environment": "google"}
    read = call(f"{_R}.TFConfigClusterResolver", rx.cluster_resolver.TFConfigClusterResolver, **given)
    assert (read.task_id, read.master(), read.environment) == (0, "grpc://a:1", "google")
    assert rx.cluster_resolver.TFConfigClusterResolver().task_id == 1

    for name, value in {"SM_HOSTS": '["algo-2", "algo-1"]', "SM_CURRENT_HOST": "algo-2"}.items():
        monkeypatch.setenv(name, value)
    sage = call(f"{_R}.SageMakerClusterResolver", rx.cluster_resolver.SageMakerClusterResolver, port=99, **given)
    assert sage.cluster_spec().task_address("worker", 0) == "algo-1:99"
    assert sage.environment == "google"

    variables = {
        "SLURM_PROCID": "1",
        "SLURM_STEP_NUM_TASKS": "3",
        "SLURM_STEP_NODELIST": "n[1-3]",
        "SLURM_STEP_TASKS_PER_NODE": "1(x3)",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    slurm = call(
        f"{_R}.SlurmClusterResolver",
        rx.cluster_resolver.SlurmClusterResolver,
        jobs={"worker": 2, "chief": 1},
        port_base=77,
        gpus_per_node=4,
        gpus_per_task=2,
        tasks_per_node=1,
        auto_set_gpu=True,
        rpc_layer="grpc",
    )
    assert slurm.cluster_spec().as_dict() == {"chief": ["n1:77"], "worker": ["n2:77", "n3:77"]}
    assert call(f"{_R}.SlurmClusterResolver.get_task_info", slurm.get_task_info) == ("worker", 0)
    assert slurm.num_accelerators() == {"GPU": 2}


@tries(f"{_R}.TPUClusterResolver", f"{_R}.KubernetesClusterResolver", f"{_R}.GCEClusterResolver")
def test_resolvers_of_clouds(call, monkeypatch):
    monkeypatch.setenv("TPU_WORKER_ID", "1")
    tpu = call(
        f"{_R}.TPUClusterResolver",
        rx.cluster_resolver.TPUClusterResolver,
        tpu="x,y",
        job_name="tpus",
        zone=None,
        project=None,
        coordinator_name=None,
        coordinator_address=None,
        credentials="default",
        service=None,
        discovery_url=None,
    )
    assert (tpu.task_type, tpu.task_id) == ("tpus", 1)
    with pytest.raises(rx.errors.ArgumentError, match=r"`zone`.*JAX finds the hosts"):
        rx.cluster_resolver.TPUClusterResolver("x,y", "us-central1-a")  # TensorFlow's second parameter

    kubernetes = call(
        f"{_R}.KubernetesClusterResolver",
        rx.cluster_resolver.KubernetesClusterResolver,
        job_to_label_mapping={"worker": ["job-name=tensorflow"]},
        tf_server_port=5,
        rpc_layer="grpc",
        override_client=FakeKubernetes(tensorflow=[pod("w-0", "10.0.0.1")]),
        executable_location=rx.cluster_resolver.KubernetesExecutableLocation.OFF_CLUSTER,
    )
    assert kubernetes.master("worker", 0) == "grpc://10.0.0.1:5"
    engine = call(
        f"{_R}.GCEClusterResolver",
        rx.cluster_resolver.GCEClusterResolver,
        project="p",
        zone="z",
        instance_group="g",
        port=6,
        task_type="chief",
        task_id=0,
        rpc_layer="grpc",
        credentials="default",
        service=FakeCompute({"a": "10.0.0.1"}),
    )
    assert engine.master() == "grpc://10.0.0.1:6"


@tries(
    *(f"{_SPEC}{member}" for member in ("", ".as_dict", ".job_tasks", ".num_tasks", ".task_indices", ".task_address"))
)
def test_cluster_specs(call):
    spec = call(_SPEC, rx.cluster_resolver.ClusterSpec, cluster={"worker": {"0": "a:1", "2": "b:1"}})
    assert call(f"{_SPEC}.as_dict", spec.as_dict) == {"worker": {0: "a:1", 2: "b:1"}}
    assert call(f"{_SPEC}.job_tasks", spec.job_tasks, job_name="worker") == ["a:1", None, "b:1"]
    assert call(f"{_SPEC}.num_tasks", spec.num_tasks, job_name="worker") == 2
    assert call(f"{_SPEC}.task_indices", spec.task_indices, job_name="worker") == [0, 2]
    assert call(f"{_SPEC}.task_address", spec.task_address, job_name="worker", task_index=2) == "b:1"
    assert spec.jobs == ["worker"]


# Servers and coordinators.


@tries(f"{_D}.Server", f"{_D}.Server.join")
def test_a_server(call, monkeypatch):
    """Without Ray: the node is a fake that has ended."""
    monkeypatch.setenv("REPLICAX_TOKEN", "0" * 32)
    started = []

    def node(*arguments):
        started.append(arguments)
        return SimpleNamespace(is_running=lambda: False, stop=lambda: None)

    monkeypatch.setattr(server_module, "Node", node)
    server = call(
        f"{_D}.Server",
        rx.Server,
        server_or_cluster_def={"ps": ["127.0.0.1:2"], "worker": ["127.0.0.1:1"]},
        job_name="ps",
        task_index=0,
        protocol="grpc",
        config=None,
        start=True,
    )
    assert server.address == "127.0.0.1:2"
    assert len(started) == 1
    call(f"{_D}.Server.join", server.join)
    with pytest.raises(rx.errors.ArgumentError, match="runs from when it is made"):
        rx.Server({"ps": ["127.0.0.1:2"]}, "ps", 0, None, None, False)


@tries(
    f"{_C}.ClusterCoordinator",
    f"{_X}.coordinator.ClusterCoordinator",
    *(f"{_C}.ClusterCoordinator.{name}" for name in ("create_per_worker_dataset", "done", "fetch", "join", "schedule")),
    f"{_C}.RemoteValue",
    f"{_X}.coordinator.RemoteValue",
    f"{_C}.RemoteValue.fetch",
    f"{_C}.RemoteValue.get",
)
def test_a_coordinator(call, fake_ray):
    of = f"{_C}.ClusterCoordinator"
    with strategy_of(1, 1) as strategy:
        coordinator = call(of, rx.coordinator.ClusterCoordinator, strategy=strategy)
        assert call(f"{_X}.coordinator.ClusterCoordinator", type(coordinator), strategy=strategy) is coordinator
        assert coordinator.strategy is strategy
        with strategy.scope():
            total = rx.Variable(0.0)
        dataset = call(
            f"{of}.create_per_worker_dataset",
            coordinator.create_per_worker_dataset,
            dataset_fn=lambda: iter([np.ones(2), np.full(2, 2.0)]),
        )

        def step(iterator, *, by):
            rows = next(iterator)
            total.assign_add(rows.sum() * by)
            return {"rows": rows}

        value = call(
            f"{of}.schedule", coordinator.schedule, fn=rx.function(step), args=(iter(dataset),), kwargs={"by": 3.0}
        )
        call(f"{of}.join", coordinator.join)
        assert call(f"{of}.done", coordinator.done)
        assert isinstance(value, rx.coordinator.RemoteValue)
        fetched = call(f"{of}.fetch", coordinator.fetch, val=[value, 5])
        assert (fetched[0]["rows"].tolist(), fetched[1]) == ([1.0, 1.0], 5)
        assert call(f"{_C}.RemoteValue.fetch", value.fetch)["rows"].tolist() == [1.0, 1.0]
        assert call(f"{_C}.RemoteValue.get", value.get)["rows"].tolist() == [1.0, 1.0]
        assert float(total) == 6.0


@tries(f"{_D}.ParameterServerStrategy", f"{_X}.ParameterServerStrategy")
def test_a_parameter_server_strategy(call):
    """The cluster of the resolver is one that is refused; real ones are in `tests/parameter_server/cluster`."""
    for name in test_a_parameter_server_strategy.tries:
        with pytest.raises(rx.errors.ClusterError, match="ps"):
            call(
                name,
                rx.ParameterServerStrategy,
                cluster_resolver=rx.cluster_resolver.SimpleClusterResolver({"worker": ["127.0.0.1:1"]}),
                variable_partitioner=rx.FixedShardsPartitioner(2),
            )


def test_the_partitioner_of_a_parameter_server_strategy(fake_ray):
    with strategy_of(1, 2, variable_partitioner=rx.FixedShardsPartitioner(2)) as strategy, strategy.scope():
        assert isinstance(rx.Variable(np.zeros(4)), rx.ShardedVariable)


@tries(*(f"{_P}.{kind}Partitioner" for kind in ("FixedShards", "MinSize", "MaxSize", "")))
def test_partitioners(call):
    fixed = call(f"{_P}.FixedShardsPartitioner", rx.FixedShardsPartitioner, num_shards=3)
    least = call(
        f"{_P}.MinSizePartitioner", rx.MinSizePartitioner, min_shard_bytes=9, max_shards=8, bytes_per_string=16
    )
    most = call(
        f"{_P}.MaxSizePartitioner", rx.MaxSizePartitioner, max_shard_bytes=10, max_shards=None, bytes_per_string=16
    )
    assert fixed(shape=(10, 2), dtype=np.float32, axis=0) == [3, 1]
    assert least(shape=(6,), dtype=np.float32) == [3]
    assert most(shape=(6,), dtype=np.float32) == [3]
    assert isinstance(fixed, rx.Partitioner)


# When a task must go.


@tries(
    f"{_X}.TerminationConfig",
    f"{_X}.PreemptionCheckpointHandler",
    *(
        f"{_X}.PreemptionCheckpointHandler.{name}"
        for name in ("run", "save_checkpoint_if_preempted", "watch_preemption_scope")
    ),
)
def test_preemption(call, tmp_path):
    of = f"{_X}.PreemptionCheckpointHandler"
    told, saved = [], []
    config = call(
        f"{_X}.TerminationConfig",
        rx.TerminationConfig,
        termination_watcher_fn=lambda: bool(told),
        exit_fn=lambda: saved.append("exit"),
        grace_period=0,
        save_fn=lambda *args, **kwargs: saved.append((args, kwargs)),
    )
    count = rx.Variable(0)
    handler = call(
        of,
        rx.PreemptionCheckpointHandler,
        cluster_resolver=rx.cluster_resolver.SimpleClusterResolver({}),
        checkpoint_or_checkpoint_manager=rx.Checkpoint(count=count),
        checkpoint_dir=tmp_path,
        termination_config=config,
    )
    with handler:
        step = lambda by: count.assign_add(by)  # noqa: E731
        assert call(f"{of}.run", handler.run, distributed_train_function=step, by=2) == 2
        with call(f"{of}.watch_preemption_scope", handler.watch_preemption_scope):
            count.assign_add(1)
        assert handler.total_run_calls == 2
        told.append(True)
        while not saved:  # The watcher asks each second.
            call(f"{of}.save_checkpoint_if_preempted", handler.save_checkpoint_if_preempted, tag="now")
    assert saved == [((), {"tag": "now"}), "exit"]
