"""A client's strategy: what it sends, what comes back, and what it refuses. The workers are this process."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import jax
import keras
import numpy as np
import pytest

import replicax as rx
import replicax.job.elsewhere.session
import replicax.ray_cluster.workers
import replicax.strategies.multi_worker as multi_worker
from replicax.cluster import Task
from replicax.errors import ArgumentError, ClusterError, ContextError
from replicax.job.processes.call import Call, pickled, unpickled
from replicax.ray_cluster.workers import Place

SERVERS = {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}
X = np.random.default_rng(0).normal(size=(24, 3)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


class SessionHere:
    """Runs calls in this process, on what arrives in another one."""

    def __init__(self, cluster: object, **options: object):
        self.options, self.is_closed = options, False

    def call(self, call: Call, everyone: bool = False) -> tuple[object, ...]:
        random.random()  # Ray does that.
        sent = unpickled(pickled(call))
        result = sent.function(*sent.args, **sent.kwargs)
        return (result, result) if everyone else (result,)

    def close(self) -> None:
        self.is_closed = True


class ClusterHere:
    places = tuple(Place(Task("worker", index), f"worker:{index}", {}) for index in range(2))


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> rx.Strategy:
    """The strategy of the workers: two replicas in this process."""
    strategy = rx.MirroredStrategy(devices=["cpu:0", "cpu:1"])
    monkeypatch.setattr(multi_worker, "_of_this_worker", _Own(strategy))
    return strategy


class _Own:
    def __init__(self, strategy: rx.Strategy):
        self.strategy = strategy

    def __call__(self, given: bytes) -> rx.Strategy:
        return self.strategy

    def __reduce__(self) -> str:
        return "_own"


_own: Any = None


@pytest.fixture
def client(worker: rx.Strategy, monkeypatch: pytest.MonkeyPatch) -> Iterator[rx.MultiWorkerMirroredStrategy]:
    monkeypatch.setitem(globals(), "_own", multi_worker._of_this_worker)
    monkeypatch.setattr(replicax.ray_cluster.workers, "connect_workers", lambda *_, **__: ClusterHere())
    monkeypatch.setattr(replicax.job.elsewhere.session, "Session", SessionHere)
    strategy = rx.MultiWorkerMirroredStrategy(remote_cluster=SERVERS)
    with contextlib.closing(strategy):
        yield strategy


def make(strategy: rx.Strategy, built: bool = True) -> keras.Model:
    keras.utils.set_random_seed(4)
    with strategy.scope():
        layers = [keras.layers.Dense(4, activation="relu"), keras.layers.Dropout(0.2), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((3,))] * built + layers)
        model.compile("adam", "mse", metrics=["mae"])
    return model


class Seen(keras.callbacks.Callback):
    """Remembers losses."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.losses.append(logs["loss"])


def everything(strategy: rx.Strategy, built: bool) -> list[Any]:
    """What a script sees of a training in several calls."""
    model, seen = make(strategy, built), Seen()
    first = model.fit(X, Y, batch_size=8, epochs=2, verbose=0, callbacks=[seen])
    second = model.fit(X, Y, batch_size=8, verbose=0, callbacks=seen, validation_split=0.25)
    assert model.history is second
    model.compile("sgd", "mae", metrics=["mse"])
    third = model.fit(X, Y, batch_size=8, verbose=0)
    found = [first.history, first.epoch, second.history, third.history, seen.losses]
    found += [model.evaluate(X, Y, batch_size=8, verbose=0, return_dict=True), model.predict(X[:8], verbose=0)]
    found += [[np.asarray(each) for each in [*model.variables, *model.optimizer.variables]], np.random.rand()]
    return found


@pytest.mark.daily(1)
@pytest.mark.parametrize("built", [True, False], ids=["built", "unbuilt"])
def test_fit_evaluate_and_predict_are_those_of_the_workers(client, worker, built: bool):
    here, there = everything(client, built), everything(worker, built)
    jax.tree.map(np.testing.assert_array_equal, here, there)


def test_functions_get_the_workers_own_strategy_and_models_in_its_scope(client, worker):
    model = make(client)

    def work(strategy, rows):
        total = strategy.reduce("sum", strategy.run(lambda: rx.get_replica_context().replica_id_in_sync_group + 1))
        assert model._replicax.strategy is strategy
        return strategy is client, type(strategy).__name__, int(total), np.asarray(model(rows))

    same, name, total, outputs = client.remote(work, client, rows=X[:2])
    assert (same, name, total) == (True, "MirroredStrategy", 3)
    np.testing.assert_allclose(outputs, model(X[:2]), rtol=1e-6)
    assert client.remote_all(lambda: 3) == (3, 3)
    assert client.num_replicas_in_sync == 2
    assert client.session.options["environment"]["REPLICAX_CLIENT"]


def test_random_generators_of_the_script_are_not_touched(client):
    random.seed(3)
    expected = random.Random(3).random()
    client.remote(random.seed, 4)
    assert random.random() == expected


REFUSED = {
    "run": lambda s: s.run(lambda: 1),
    "reduce": lambda s: s.reduce("sum", 1.0),
    "gather": lambda s: s.gather(np.ones(2)),
    "local_results": lambda s: s.local_results(1.0),
    "replicate": lambda s: s.replicate({}),
    "update": lambda s: s.update(rx.Variable(1.0), lambda v: v),
    "distribute_dataset": lambda s: s.distribute_dataset([X]),
    "distribute_datasets_from_function": lambda s: s.distribute_datasets_from_function(lambda _: [X]),
    "distribute_values_from_function": lambda s: s.distribute_values_from_function(lambda _: 1),
    "shard_report": lambda s: s.shard_report([X]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_replicas_says_how_to_do_it(client, name: str):
    with pytest.raises(ContextError, match=rf"strategy\.{name} was called on the client.*strategy\.remote\(fn"):
        REFUSED[name](client)


def test_errors_of_fit_come_before_and_after(client):
    unbuilt = make(client, built=False)
    with pytest.raises(ArgumentError, match=r"has no variables yet.*begin the model with keras\.Input"):
        unbuilt.predict(X, verbose=0)
    model = make(client)
    before = [np.asarray(variable) for variable in model.variables]
    with pytest.raises(ArgumentError, match=r"cannot be sent to the workers: .*generator"):
        model.fit((each for each in [(X, Y)]), verbose=0)
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)


def test_what_a_client_is_told(client, monkeypatch: pytest.MonkeyPatch):
    assert isinstance(client, rx.MultiWorkerMirroredStrategy)
    assert repr(client) == "MultiWorkerMirroredStrategy(client of worker:0, worker:1)"
    assert (client.num_workers, client.is_chief, client.worker_index) == (2, True, 0)
    with pytest.raises(ArgumentError, match="`cluster_resolver` says which worker this process is"):
        rx.MultiWorkerMirroredStrategy(rx.cluster_resolver.SimpleClusterResolver(SERVERS), remote_cluster=SERVERS)
    with pytest.raises(ArgumentError, match="`remote_cluster` is a dict"):
        rx.MultiWorkerMirroredStrategy(remote_cluster=3)
    with pytest.raises(ArgumentError, match="takes a function"):
        client.remote(3)
    client.close()
    assert client.session.is_closed
    monkeypatch.setenv("REPLICAX_CLIENT", "1")  # In a worker's process the same line makes the worker's strategy.
    own = rx.MultiWorkerMirroredStrategy(remote_cluster=SERVERS)
    assert (own.num_workers, own.remote(max, 1, 2), own.remote_all(max, 1, 2)) == (1, 2, (2,))


def test_parameter_servers_cannot_train_synchronously():
    with pytest.raises(ClusterError, match=r"remote_cluster.ps is not allowed in synchronous training"):
        rx.MultiWorkerMirroredStrategy(remote_cluster={"ps": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"]})
