"""What holds for programs under every strategy: one compilation, and results of the right kind."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from tests.contract.strategies import ALL


@pytest.fixture
def compilations(caplog):
    """The names of the programs that XLA compiles during the test."""
    with caplog.at_level(logging.WARNING, logger="jax"), jax.log_compiles():
        yield lambda name: sum(f"Compiling jit({name})" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("name", ALL)
def test_a_step_is_compiled_once(name, compilations):
    strategy = ALL[name]()
    with strategy.scope():
        weights, total = rx.Variable(jnp.ones(3)), rx.Variable(0.0, synchronization="on_read", aggregation="sum")

    def replica_step(x):
        def loss_fn():
            return jnp.mean(weights.value * x)

        total.assign_add(jnp.sum(x))
        weights.assign_sub(rx.grad(loss_fn, weights, aggregation="mean")())

    @rx.function
    def counted_step(x):
        strategy.run(replica_step, args=(x,))

    for (x,) in strategy.distribute_dataset([(np.ones((24, 3), np.float32),)] * 3):
        counted_step(x)
    assert compilations("counted_step") == 1
    assert compilations("counted_step_update") == strategy.cuts_steps  # a program of its own
    assert float(total.value) == 3 * 24 * 3
    np.testing.assert_allclose(weights.numpy(), 1 - 3 * np.ones(3) / 3, atol=1e-6)


@pytest.mark.daily(25)
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("rows", [24, 25, 1])
def test_reduce_is_exact_for_any_number_of_rows(name, rows):
    strategy = ALL[name]()
    x = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2)
    (batch,) = strategy.distribute_dataset([{"x": x}])
    doubled = strategy.run(lambda batch: {"y": batch["x"] * 2}, args=(batch,))
    np.testing.assert_allclose(strategy.reduce("mean", doubled, axis=0)["y"], 2 * x.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(strategy.reduce("sum", doubled, axis=(0, 1))["y"], 2 * x.sum(), rtol=1e-6)
    np.testing.assert_array_equal(strategy.gather(doubled, axis=0)["y"], 2 * x)


@pytest.mark.daily(8)
@pytest.mark.parametrize("name", ALL)
def test_state_survives_partial_batches(name):
    strategy = ALL[name]()
    with strategy.scope():
        seen = rx.Variable(0, synchronization="on_read", aggregation="sum", dtype="int32")
        steps = rx.Variable(0)

    def count(x):
        seen.assign_add(x.shape[0])
        steps.assign_add(1)

    sizes = [8, 7, 24, 1, 16]
    for (x,) in strategy.distribute_dataset([(np.zeros((size, 1)),) for size in sizes]):
        strategy.run(count, args=(x,))
    assert int(seen.value) == sum(sizes)
    assert int(steps.value) == len(sizes)
