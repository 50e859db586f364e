"""`train_and_evaluate` from a client: what travels, what is refused, and a whole training on two servers."""

from __future__ import annotations

import contextlib
import json
import pickle
import secrets
import subprocess
import sys
from collections.abc import Iterator

import keras
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ClusterError
from replicax.estimator import DistributeConfig, LatestExporter, RunConfig, TrainSpec, train_and_evaluate
from replicax.job.processes.ports import reserved_ports
from tests.estimator.test_train_and_evaluate import batches, eval_spec, evaluations, made

REMOTE = {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}


def test_a_config_takes_the_role_of_the_process_where_it_arrives(monkeypatch):
    remote = DistributeConfig(rx.MultiWorkerMirroredStrategy, remote_cluster=REMOTE)
    config = RunConfig(model_dir="runs", save_checkpoints_steps=7, seed=3, experimental_distribute=remote)
    assert (config.is_client, config.role) == (True, "local")
    sent = pickle.dumps(config)
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": REMOTE, "task": {"type": "worker", "index": 1}}))
    arrived = pickle.loads(sent)
    assert (arrived.is_client, arrived.role, arrived.task_id, arrived.num_worker_replicas) == (False, "worker", 1, 2)
    assert (arrived.model_dir, arrived.save_checkpoints_steps, arrived.save_checkpoints_secs) == ("runs", 7, None)
    assert (arrived.seed, arrived.train_distribute) == (3, rx.MultiWorkerMirroredStrategy)


def test_an_estimator_of_a_keras_model_travels_with_its_values(tmp_path):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.5), "mse", metrics=["mae"])
    data = np.ones((8, 3), np.float32), np.ones((8, 1), np.float32)
    here, there = (rx.estimator.model_to_estimator(model, model_dir=tmp_path / name) for name in ("here", "there"))
    there = pickle.loads(pickle.dumps(there))
    for each in (here, there):
        each.train(lambda: data, max_steps=3)
    assert there.evaluate(lambda: data) == here.evaluate(lambda: data)


def test_a_client_has_no_training_of_its_own(tmp_path):
    config = RunConfig(model_dir=tmp_path, experimental_distribute=DistributeConfig(remote_cluster=REMOTE))
    with pytest.raises(ClusterError, match="has no part in a training itself"):
        config.training_strategy()
    estimator = made(tmp_path, experimental_distribute=DistributeConfig(remote_cluster=REMOTE))
    with pytest.raises(ClusterError, match="has no part in a training itself"):
        estimator.train(batches, max_steps=2)
    one = DistributeConfig(rx.OneDeviceStrategy("cpu:0"), remote_cluster=REMOTE)
    with pytest.raises(ClusterError, match="belongs to this process, and the training is elsewhere"):
        train_and_evaluate(made(tmp_path, experimental_distribute=one), TrainSpec(batches, max_steps=2), eval_spec())


@contextlib.contextmanager
def servers(number: int) -> Iterator[dict[str, list[str]]]:
    with reserved_ports(number, "127.0.0.1") as ports:
        cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
    task = [sys.executable, "-m", "replicax", "server", "--cluster", json.dumps(cluster), "--job", "worker", "--index"]
    started = [subprocess.Popen([*task, str(index)]) for index in range(number)]
    try:
        yield cluster
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(60)


@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.nightly
def test_workers_elsewhere_train_and_the_metrics_and_exports_come_back(tmp_path, monkeypatch):
    monkeypatch.setenv("REPLICAX_TOKEN", secrets.token_hex(16))
    alone = made(tmp_path / "alone").train(batches, max_steps=6)
    with servers(2) as cluster:
        estimator = made(tmp_path / "there", experimental_distribute=DistributeConfig(remote_cluster=cluster))
        exporter = LatestExporter("latest", rx.TensorSpec((None, 3), "float32"))
        metrics, exports = train_and_evaluate(
            estimator, TrainSpec(batches, max_steps=6), eval_spec(exporters=exporter, idle_timeout_secs=120)
        )
    assert metrics["global_step"] == 6
    assert evaluations(estimator) == [2, 4, 6]
    for name in ("w", "b"):
        np.testing.assert_allclose(estimator.get_variable_value(name), alone.get_variable_value(name), rtol=1e-6)
    ones = np.ones((2, 3), np.float32)
    expected = ones @ alone.get_variable_value("w") + alone.get_variable_value("b")
    np.testing.assert_allclose(rx.load_export(exports[0])(ones), expected, rtol=1e-5)
