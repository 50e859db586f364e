"""Sharded training over several processes equals training on one device."""

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
from tests.multiprocess.workers import run_workers

pytestmark = pytest.mark.multiprocess
TOLERANCE = 1e-6
EPOCHS, BATCH = 2, 16
OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.01, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "adagrad": lambda: keras.optimizers.Adagrad(0.02),
}


LAYOUT = {
    "up/kernel": (None, "model"),
    "down/kernel": (None, "model"),
    "down/bias": ("model",),
    "head/kernel": ("model", None),
}


def problem(rows: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 6)).astype(np.float32)
    return x, (x @ rng.normal(size=(6, 3)) + 0.1).astype(np.float32)


def keras_model() -> keras.Model:
    keras.utils.set_random_seed(3)
    return keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(16, use_bias=False, name="up"),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(24, "tanh", name="down"),
            keras.layers.Dense(3, name="head"),
        ]
    )


def fully_sharded() -> rx.Strategy:
    return rx.FullyShardedStrategy(min_size=8, start_timeout=60)


def over_model_axis(shape: tuple[int, int], across: bool, layout: Any = None) -> rx.Strategy:
    """Cuts layers over the second axis of a mesh, whose devices lie in one process, or in all of them."""
    started = rx.MultiWorkerMirroredStrategy(start_timeout=60)
    devices = np.array(jax.devices()).reshape(shape)
    if across:
        devices = np.array(jax.devices()).reshape(started.num_workers, -1).T.reshape(shape)
    mesh = jax.sharding.Mesh(devices, ("batch", "model"))
    return rx.LayoutStrategy(mesh, layout or LAYOUT)


def read(variables: Any) -> list[Any]:
    return [np.asarray(variable).tolist() for variable in variables]


def custom_loop(strategy: rx.Strategy, rows: int, optimizer: str) -> dict[str, Any]:
    with strategy.scope():
        model, adam, seen = keras_model(), OPTIMIZERS[optimizer](), keras.metrics.Mean()

    def step(batch):
        x, y = batch

        def loss_fn():
            losses = jnp.sum((model(x, training=False) - y) ** 2, axis=-1)
            seen.update_state(losses)
            return rx.compute_average_loss(losses, global_batch_size=BATCH)

        loss, gradients = rx.value_and_grad(loss_fn, model.trainable_variables)()
        adam.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @rx.function
    def train(batch):
        return strategy.reduce("sum", strategy.run(step, args=(batch,)), axis=None)

    dataset = strategy.distribute_dataset(problem(rows), batch_size=BATCH)
    losses = [float(train(batch)) for _ in range(EPOCHS) for batch in dataset]
    return {
        "losses": [*losses, float(seen.result())],
        "weights": read([*model.variables, *adam.variables]),
        "sharded": sum(not variable.value.is_fully_replicated for variable in (*model.variables, *adam.variables)),
    }


def keras_fit(strategy: rx.Strategy, rows: int, optimizer: str) -> dict[str, Any]:
    x, y = problem(rows)
    with strategy.scope():
        model = keras_model()
        model.compile(optimizer=OPTIMIZERS[optimizer](), loss="mse", metrics=["mae"])
    history = model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0).history
    evaluated = model.evaluate(x, y, batch_size=BATCH, verbose=0)
    predicted = np.asarray(model.predict(x, batch_size=BATCH, verbose=0))
    return {
        "losses": [*history["loss"], *history["mae"], *evaluated],
        "weights": [*read([*model.variables, *model.optimizer.variables]), predicted.tolist()],
        "sharded": sum(not v.value.is_fully_replicated for v in (*model.variables, *model.optimizer.variables)),
    }


PROGRAMS = {"custom_loop": custom_loop, "keras_fit": keras_fit}
STRATEGIES = {
    "fully_sharded": (fully_sharded, 4),
    "model_inside": (lambda: rx.LayoutStrategy(mesh_shape=(2, 4), min_size=8, start_timeout=60), 4),
    "model_across": (lambda: over_model_axis((2, 2), True), 2),
    "one_replica": (lambda: over_model_axis((1, 4), False), 2),
}


def worker(kind: str, rows: int, optimizers: list[str]) -> dict[str, Any]:
    """Everything in one cluster: a process takes seconds to start."""
    strategy = STRATEGIES[kind][0]()
    found: dict[str, Any] = {"who": [jax.process_index(), len(strategy.placement.workers), strategy.placement.is_chief]}
    for name, program in PROGRAMS.items():
        found |= {f"{name} {optimizer}": program(strategy, rows, optimizer) for optimizer in optimizers}
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        "fully_sharded",
        pytest.param("model_across", marks=pytest.mark.nightly),
        pytest.param("model_inside", marks=pytest.mark.nightly),
        pytest.param("one_replica", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize(
    ("rows", "optimizers"),
    [
        pytest.param(43, ["adam"], id="uneven"),
        pytest.param(48, ["sgd", "adagrad"], id="even", marks=pytest.mark.nightly),
    ],
)
def test_workers_train_as_one_device(kind: str, rows: int, optimizers: list[str]):
    results = run_workers(worker, 2, STRATEGIES[kind][1], kind=kind, rows=rows, optimizers=optimizers)
    for index, result in enumerate(results):
        assert result.pop("who") == [index, 2, index == 0]
        assert result == results[0], f"worker {index} has other numbers than worker 0"
    alone = rx.OneDeviceStrategy("cpu:0")
    for name, program in PROGRAMS.items():
        for optimizer in optimizers:
            expected, found = program(alone, rows, optimizer), results[0][f"{name} {optimizer}"]
            assert found["sharded"] > 3
            np.testing.assert_allclose(found["losses"], expected["losses"], rtol=1e-5)
            for got, wanted in zip(found["weights"], expected["weights"], strict=True):
                difference = np.linalg.norm(np.subtract(got, wanted)) / max(1e-6, np.linalg.norm(wanted))
                assert difference < TOLERANCE, (name, optimizer, np.shape(got))
