"""Training over several processes equals training on one device."""

from __future__ import annotations

import os
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
import pytest

import replicax as rx
from tests.multiprocess.workers import run_workers

pytestmark = pytest.mark.multiprocess
TOLERANCE = 1e-6
EPOCHS, BATCH = 2, 12


def problem(rows: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 6)).astype(np.float32)
    return x, (x @ rng.normal(size=(6, 3)) + 0.1).astype(np.float32)


def keras_model(worker: int) -> keras.Model:
    """Weights that differ between the workers, until a strategy makes them the chief's."""
    keras.utils.set_random_seed(worker)
    layers = [keras.layers.Dense(8, "tanh"), keras.layers.Dropout(0.2), keras.layers.Dense(3)]
    return keras.Sequential([keras.Input((6,)), *layers])


def custom_loop(strategy: rx.Strategy, rows: int, worker: int = 0) -> dict[str, Any]:
    with strategy.scope():
        model = keras_model(worker)
        optimizer, seen = keras.optimizers.Adam(0.01), keras.metrics.Mean()

    def step(batch):
        x, y = batch

        def loss_fn():
            losses = jnp.sum((model(x, training=True) - y) ** 2, axis=-1)
            seen.update_state(losses)
            return rx.compute_average_loss(losses, global_batch_size=BATCH)

        loss, gradients = rx.value_and_grad(loss_fn, model.trainable_variables)()
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @rx.function
    def train(batch):
        return strategy.reduce("sum", strategy.run(step, args=(batch,)), axis=None)

    dataset = strategy.distribute_dataset(problem(rows), batch_size=BATCH)
    losses = [float(train(batch)) for _ in range(EPOCHS) for batch in dataset]
    gathered = [np.asarray(rows_of(strategy)(batch)).tolist() for batch in dataset]
    return {"losses": losses, "weights": weights(model), "mean": float(seen.result()), "gathered": gathered}


def rows_of(strategy: rx.Strategy) -> Any:
    """Returns a function that puts a batch together again, compiled."""
    return rx.function(lambda batch: strategy.gather(strategy.run(lambda b: b[0], args=(batch,))))


def optax_loop(strategy: rx.Strategy, rows: int) -> dict[str, Any]:
    optimizer = optax.adam(0.01)
    params = {"w": jnp.ones((6, 3)), "b": jnp.zeros(3)}
    state = strategy.replicate((params, optimizer.init(params)))

    def step(state, batch):
        params, slots = state
        x, y = batch

        def loss_fn(params):
            losses = jnp.sum((jnp.tanh(x @ params["w"]) + params["b"] - y) ** 2, axis=-1)
            return rx.compute_average_loss(losses, global_batch_size=BATCH)

        loss, gradients = jax.value_and_grad(loss_fn)(params)
        updates, slots = optimizer.update(gradients, slots)
        return (optax.apply_updates(params, updates), slots), loss

    losses = []
    for _ in range(EPOCHS):
        for batch in strategy.distribute_dataset(problem(rows), batch_size=BATCH):
            state, loss = strategy.run(step, args=(state, batch))
            losses.append(float(strategy.reduce("sum", loss, axis=None)))
    return {"losses": losses, "weights": [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(state[0])]}


def compiled_optax_loop(strategy: rx.Strategy, rows: int) -> dict[str, Any]:
    """As `optax_loop` in one compiled program, with more layers: the workers sum their small gradients together."""
    optimizer, rng = optax.adam(0.01), np.random.default_rng(1)
    sizes = [(6, 8), (8, 5), (5, 3)]
    params = [{"w": jnp.asarray(rng.normal(size=size), "float32"), "b": jnp.zeros(size[1])} for size in sizes]
    state = strategy.replicate((params, optimizer.init(params)))

    def step(state, batch):
        params, slots = state
        x, y = batch

        def loss_fn(params):
            values = x
            for layer in params:
                values = jnp.tanh(values @ layer["w"] + layer["b"])
            losses = jnp.sum((values - y) ** 2, axis=-1)
            return rx.compute_average_loss(losses, global_batch_size=BATCH)

        loss, gradients = jax.value_and_grad(loss_fn)(params)
        norm = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(gradients)))
        gradients = jax.tree.map(lambda leaf: leaf * jnp.minimum(1.0, 5.0 / norm), gradients)
        updates, slots = optimizer.update(gradients, slots)
        return (optax.apply_updates(params, updates), slots), (loss, norm)

    @rx.function(donate_argnums=(0,))
    def train(state, batch):
        state, (loss, norm) = strategy.run(step, args=(state, batch))
        return state, strategy.reduce("sum", loss), norm

    losses, norms = [], []
    for _ in range(EPOCHS):
        for batch in strategy.distribute_dataset(problem(rows), batch_size=BATCH):
            state, loss, norm = train(state, batch)
            losses.append(float(loss))
            norms.append(float(norm))
    leaves = jax.tree.leaves(state[0])
    return {"losses": [*losses, *norms], "weights": [np.asarray(leaf).tolist() for leaf in leaves]}


def keras_fit(strategy: rx.Strategy, rows: int, worker: int = 0) -> dict[str, Any]:
    x, y = problem(rows)
    with strategy.scope():
        model = keras_model(worker)
        model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse", metrics=["mae"])
    history = model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0).history
    evaluated = model.evaluate(x, y, batch_size=BATCH, verbose=0)
    predicted = np.asarray(model.predict(x, batch_size=BATCH, verbose=0))
    return {
        "losses": [*history["loss"], *history["mae"], *evaluated],
        "weights": [*weights(model), predicted.tolist()],
    }


def weights(model: keras.Model) -> list[Any]:
    return [np.asarray(variable).tolist() for variable in model.variables]


PROGRAMS = {
    "custom_loop": custom_loop,
    "optax_loop": optax_loop,
    "compiled_optax_loop": compiled_optax_loop,
    "keras_fit": keras_fit,
}


def worker(rows: int) -> dict[str, Any]:
    """Everything in one cluster: a process takes seconds to start."""
    strategy = rx.MultiWorkerMirroredStrategy(start_timeout=60, random_numbers="per_row")
    values = {"who": [strategy.worker_index, strategy.num_workers, strategy.is_chief, strategy.num_replicas_in_sync]}
    values["custom_loop"] = custom_loop(strategy, rows, strategy.worker_index)
    values["optax_loop"] = optax_loop(strategy, rows)
    values["compiled_optax_loop"] = compiled_optax_loop(strategy, rows)
    values["keras_fit"] = keras_fit(strategy, rows, strategy.worker_index)
    return values


@pytest.mark.slow
@pytest.mark.daily(1)
@pytest.mark.parametrize(("workers", "devices", "rows"), [(2, 2, 48), (3, 1, 43)], ids=["even", "uneven"])
def test_workers_train_as_one_device(workers: int, devices: int, rows: int):
    results = run_workers(worker, workers, devices, rows=rows)
    alone = rx.OneDeviceStrategy("cpu:0")
    for index, result in enumerate(results):
        assert result.pop("who") == [index, workers, index == 0, workers * devices]
        assert result == results[0], f"worker {index} has other numbers than worker 0"
    for name, program in PROGRAMS.items():
        expected, found = program(alone, rows), results[0][name]
        np.testing.assert_allclose(found["losses"], expected["losses"], rtol=1e-5)
        assert found.get("gathered") == expected.get("gathered")
        for got, wanted in zip(found["weights"], expected["weights"], strict=True):
            difference = np.linalg.norm(np.subtract(got, wanted)) / np.linalg.norm(wanted)
            assert difference < TOLERANCE, (name, np.shape(got))
