"""Values, data and reports of strategies whose shards, and whose replicas' devices, lie in several processes."""

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
from replicax.variables import lies_in_several_processes
from tests.multiprocess.test_sharded import BATCH, STRATEGIES, keras_model, problem, read
from tests.multiprocess.workers import run_workers

pytestmark = pytest.mark.multiprocess


def values(strategy: rx.Strategy) -> dict[str, Any]:
    replicas = strategy.num_replicas_in_sync
    made = strategy.distribute_values_from_function(lambda c: jnp.full((2,), c.replica_id_in_sync_group + 1.0))
    odd = strategy.distribute_values_from_function(lambda c: jnp.ones((c.replica_id_in_sync_group + 1, 2)))
    doubled = strategy.run(lambda v: 2 * v, args=(made,))
    (x, _) = next(iter(strategy.distribute_dataset(problem(16), batch_size=BATCH)))
    with strategy.scope():
        variable = rx.Variable(np.arange(48.0, dtype=np.float32).reshape(16, 3), name="head/kernel")
        total = rx.Variable(0.0, synchronization="on_read", aggregation="sum", name="total")

    def step(row: Any) -> Any:
        total.assign_add(1.0)
        variable.assign_add(jnp.ones((16, 3)))
        return row

    back = strategy.run(step, args=(x,))
    return {
        "sum": np.asarray(strategy.reduce("sum", doubled)).tolist(),
        "gathered": np.asarray(strategy.gather(doubled, axis=0)).tolist(),
        "odd": np.asarray(strategy.gather(odd, axis=0)).shape[0] if replicas > 1 else 1,
        "rows": np.asarray(strategy.gather(back, axis=0)).tolist(),
        "variable": variable.numpy().tolist(),
        "asarray": np.asarray(variable).tolist(),
        "total": float(total.numpy()),
        "explained": str(strategy.explain([variable])),
        "shown": str(variable).replace(" ", "")[:20],
        "local": len(strategy.local_results(doubled)),
        "local rows": [np.shape(each)[0] for each in strategy.local_results(back)],
    }


def model_of(strategy: rx.Strategy) -> keras.Model:
    with strategy.scope():
        model = keras_model()
        model.compile(keras.optimizers.SGD(0.01), "mse", steps_per_execution=2)
    return model


def own_data(strategy: rx.Strategy) -> dict[str, Any]:
    """Trains with batches that each worker has read by itself; returns the steps' rows, and the weights."""
    x, y = problem(48)
    own = [(x[i : i + 8], y[i : i + 8]) for i in range(8 * jax.process_index(), 48, 16)]
    datasets = [
        strategy.distribute_dataset(own, rx.InputOptions(auto_shard_policy="off")),
        strategy.distribute_datasets_from_function(
            lambda c: [(x[i : i + 4], y[i : i + 4]) for i in range(4 * c.input_pipeline_id, 44, 8)],
            rx.InputOptions(uneven_workers="drain"),
        ),
    ]
    model, steps = model_of(strategy), []
    for dataset in datasets:
        rows = [strategy.run(lambda b: b, args=(batch,)) for batch in dataset]
        steps.append([[np.asarray(strategy.gather(part, axis=0)).tolist() for part in each] for each in rows])
        model.fit(dataset, epochs=1, verbose=0)
    model.train_on_batch(x[:11], y[:11])
    predicted = np.asarray(model.predict_on_batch(x[:5]))
    for variable, weight in zip(model.weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(variable), weight)
        assert ", value=" not in repr(variable) or not lies_in_several_processes(variable.value)
    return {"steps": steps, "weights": [*read(model.variables), predicted.tolist()]}


def alone(steps: list[Any]) -> list[Any]:
    x, y = problem(48)
    model = model_of(rx.OneDeviceStrategy("cpu:0"))
    for rows in [rows for each in steps for rows in each]:
        model.train_on_batch(*map(np.float32, rows))
    model.train_on_batch(x[:11], y[:11])
    return [*read(model.variables), np.asarray(model.predict_on_batch(x[:5])).tolist()]


def worker(kind: str, reads: bool) -> dict[str, Any]:
    strategy = STRATEGIES[kind][0]()
    found = {"values": values(strategy)}
    if reads:
        found["trained"] = own_data(strategy)
    else:  # Fewer replicas than workers: one of them would read for none.
        with pytest.raises(rx.errors.ArgumentError, match="for no replica"):
            strategy.distribute_datasets_from_function(lambda c: [])
    return found


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("kind", "replicas", "local"),
    [
        pytest.param("fully_sharded", 8, 4, marks=pytest.mark.nightly),
        ("model_across", 2, 2),
        pytest.param("model_inside", 2, 1, marks=pytest.mark.nightly),
        pytest.param("one_replica", 1, 1, marks=pytest.mark.nightly),
    ],
)
def test_values_are_alike_on_all_workers(kind: str, replicas: int, local: int):
    results = run_workers(worker, 2, STRATEGIES[kind][1], kind=kind, reads=kind != "one_replica")
    x, _ = problem(48)
    for result in results:
        found = result["values"]
        assert found["sum"] == [replicas * (replicas + 1.0)] * 2
        assert found["gathered"] == [2.0 * (i // 2 + 1) for i in range(2 * replicas)]
        assert found["odd"] == replicas * (replicas + 1) // 2
        np.testing.assert_array_equal(found["rows"], x[:16])
        expected = np.arange(48.0).reshape(16, 3) + 1
        np.testing.assert_array_equal(found["variable"], expected)
        np.testing.assert_array_equal(found["asarray"], expected)
        assert found["total"] == replicas
        assert "head/kernel" in found["explained"]
        assert found["local"] == local
        assert found["local rows"] == [16 // replicas] * local
    assert results[0] == results[1]
    if "trained" in results[0]:
        trained = results[0]["trained"]
        for found, expected in zip(trained["weights"], alone(trained["steps"]), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        assert [sum(len(x) for x, _ in steps) for steps in trained["steps"]] == [48, 44]
