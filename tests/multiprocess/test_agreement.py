"""What workers make each for itself is the chief's afterwards, or an error that names what differs."""

from __future__ import annotations

import os
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ReduceError, ValuesMismatchError
from tests.multiprocess.workers import run_workers

pytestmark = pytest.mark.multiprocess


def error_of(call: Any) -> str:
    try:
        call()
    except ValuesMismatchError as error:
        return str(error)
    return "none"


def worker() -> dict[str, Any]:
    strategy = rx.MultiWorkerMirroredStrategy(start_timeout=60)
    mine, found = strategy.worker_index, {}

    def variables(names):
        with strategy.scope():
            return {name: rx.Variable(jnp.full(3, ord(name) + 100.0 * mine), name=name) for name in names}

    found["variables"] = {name: v.numpy().tolist() for name, v in variables("ab").items()}
    found["swapped"] = error_of(lambda: variables("ab" if mine == 0 else "ba"))

    nest = {"w": np.full((2, 2), mine + 1.0), "large": np.full(40_000, mine + 1.0), "n": mine, "text": f"{mine}"}
    replicated = strategy.replicate(nest)
    found["replicated"] = [replicated["w"].tolist(), float(replicated["large"].sum()), int(replicated["n"])]
    found["copies"] = [np.asarray(shard.data).tolist() for shard in replicated["w"].addressable_shards]
    found["own"] = replicated["text"]
    found["shapes"] = error_of(lambda: strategy.replicate({"w": np.zeros(3 + mine)}))

    with strategy.scope():
        for _ in range(3 * mine):
            keras.layers.Dense(2)  # Keras counts them, so that the names below differ.
        kernels = []
        for value in (1.0, 2.0):
            layer = keras.layers.Dense(2, kernel_initializer=keras.initializers.Constant(value + 10 * mine))
            layer.build((None, 2))
            kernels.append(layer.kernel)
    found["path"] = kernels[0].path
    with strategy.scope():
        found["keras"] = list(map(float, rx.function(lambda: [kernel.value.sum() for kernel in kernels])()))
    with strategy.scope():
        fresh = [keras.Variable(np.zeros(2), name=name) for name in ("x", "y")]
        order = fresh if mine == 0 else fresh[::-1]
        found["read in another order"] = error_of(lambda: rx.function(lambda: [v.value.sum() for v in order])())
    found["own values"] = [
        refused(lambda: strategy.gather(np.array([mine]))),
        refused(lambda: strategy.reduce("mean", float(mine))),
        refused(lambda: strategy.reduce("sum", jnp.full(2, mine), axis=0)),
        strategy.gather(np.array([7])).tolist(),  # the same in all
        float(strategy.reduce("mean", 3.0)),
        strategy.gather(strategy.distribute_values_from_function(lambda _: np.array([mine]))).tolist(),
    ]
    return {**found, **values_of_replicas(strategy)}


def refused(call: Any) -> bool:
    try:
        call()
    except ReduceError as error:
        return "differs between the workers" in str(error) and "distribute_values_from_function" in str(error)
    return False


def values_of_replicas(strategy: Any) -> dict[str, Any]:
    """What `reduce` and `gather` make of components that four replicas of two workers bring."""

    def of(value_fn):
        return strategy.distribute_values_from_function(lambda c: value_fn(c.replica_id_in_sync_group))

    def combined(value, axis=0, number=5):
        calls = (
            lambda: strategy.reduce("sum", value),
            lambda: strategy.reduce("sum", value, axis=axis),
            lambda: strategy.reduce("mean", value, axis=axis),
            lambda: strategy.gather(value, axis=axis),
            lambda: strategy.run(lambda x: x, args=(value,)),
        )
        return [outcome(call) for call in calls[:number]]

    rows = of(lambda i: np.full((1 + i // 2, 2), i, np.float32))
    return {
        "rows": combined(rows),
        "here": [component.shape for component in strategy.local_results(rows)],
        "dtypes": combined(of(lambda i: np.ones(2, np.int32 if i > 1 else np.float32))),
        "ranks": combined(of(lambda i: np.ones((2,) * (1 + i // 2), np.float32))),
        "large": float(strategy.reduce("sum", of(lambda i: np.ones(300_000 + i)), axis=0)),
        "even": combined(of(lambda i: np.full((2,), i, np.float32)), number=4),
        "numbers": outcome(lambda: strategy.reduce("sum", of(lambda i: 2 if i > 1 else 2.5))),
        "objects": outcome(lambda: strategy.gather(of(lambda i: f"replica {i}"))),
        "structures": error_of(lambda: of(lambda i: {"a": 1} if i > 1 else {"b": 1})),
    }


def outcome(call: Any) -> Any:
    try:
        return jax.tree_util.tree_map(lambda x: np.asarray(x).tolist(), call())
    except rx.errors.ReplicaxError as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.slow
def test_workers_have_the_chiefs_values_or_hear_what_differs():
    for mine, found in enumerate(run_workers(worker, workers=2, devices=2)):
        assert found["variables"] == {"a": [97.0] * 3, "b": [98.0] * 3}
        assert "at number 1: worker:0 has 'a' (3,) float32, worker:1 has 'b' (3,) float32" in found["swapped"]
        assert found["replicated"] == [[[1.0, 1.0], [1.0, 1.0]], 40_000.0, 0]
        assert found["copies"] == [[[1.0, 1.0], [1.0, 1.0]]] * 2
        assert found["own"] == str(mine)
        assert "worker:0 has \"value['w']\" (3,) float32, worker:1 has \"value['w']\" (4,) float32" in found["shapes"]
        assert found["path"] == ("dense/kernel" if mine == 0 else "dense_3/kernel")
        assert found["keras"] == [4.0, 8.0]
        assert "worker:0 has 'x' (2,) float32, worker:1 has 'y' (2,) float32" in found["read in another order"]
        assert found["own values"] == [True, True, True, [7], 3.0, [0, 0, 1, 1]]
        check_values_of_replicas(found)


def check_values_of_replicas(found: dict[str, Any]) -> None:
    total, reduced, mean, gathered, run = found["rows"]
    kinds = "[(1, 2) float32, (1, 2) float32, (2, 2) float32, (2, 2) float32]"
    assert f"components of different shapes or dtypes {kinds}" in total
    assert f"got {kinds}" in run
    assert (reduced, mean) == ([11.0, 11.0], pytest.approx([11 / 6, 11 / 6]))
    assert gathered == [[float(i)] * 2 for i in (0, 1, 2, 2, 3, 3)]
    assert len(found["here"]) == 2
    total, reduced, mean, gathered, run = found["dtypes"]
    assert all("(2,) float32, (2,) float32, (2,) int32, (2,) int32" in error for error in (total, run))
    assert (reduced, mean, gathered) == (8.0, 1.0, [1.0] * 8)
    assert found["ranks"][0].startswith("ReplicaShapeError")
    assert found["ranks"][3].startswith("ReplicaShapeError")
    assert found["large"] == 1_200_006
    assert found["even"] == [[6.0, 6.0], 12.0, 1.5, [0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0]]
    assert "() float32, () float32, () int32, () int32" in found["numbers"]
    assert "Only arrays can be combined, got components [str, str, str, str]" in found["objects"]
    assert "worker:1 has PyTreeDef({'a': *})" in found["structures"]
