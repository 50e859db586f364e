from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ArgumentError, ContextError


@pytest.mark.parametrize(
    ("loss", "weight", "size", "expected"),
    [
        ([1.0, 2.0, 3.0], None, None, 2.0),
        ([1.0, 2.0, 3.0], None, 6, 1.0),
        ([1.0, 2.0, 3.0], None, np.int64(6), 1.0),
        ([1.0, 2.0, 3.0], None, 0, 0.0),
        ([], None, None, 0.0),
        ([1.0, 2.0, 3.0], [1.0, 0.0, 2.0], None, 7.0 / 3),  # weights do not change the divisor
        ([1.0, 2.0, 3.0], 2.0, 6, 2.0),
        ([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], None, 2, 10.5),  # all entries count, only rows divide
        ([[1.0, 2.0], [3.0, 4.0]], [1.0, 0.0], None, 1.5),
        ([[1.0, 2.0], [3.0, 4.0]], [[1.0, 0.0], [0.0, 2.0]], None, 4.5),
        ([1.0, 2.0, 3.0], [[1.0], [0.0], [2.0]], None, 7.0 / 3),  # a column of weights, as data sets often have it
        ([1, 2, 3], None, 4, 1.5),
    ],
    ids=str,
)
def test_the_average_is_the_weighted_sum_over_the_global_batch_size(loss, weight, size, expected):
    weight = None if weight is None else jnp.asarray(weight)
    result = rx.compute_average_loss(jnp.asarray(loss), sample_weight=weight, global_batch_size=size)
    assert result.shape == ()
    assert float(result) == pytest.approx(expected)


@pytest.mark.parametrize("size", [4, 0])
def test_the_global_batch_size_may_be_an_array(size):
    result = rx.compute_average_loss(jnp.array([1.0, 3.0]), global_batch_size=jnp.asarray(size))
    assert float(result) == (1.0 if size else 0.0)


def test_the_average_keeps_the_losses_dtype():
    assert rx.compute_average_loss(jnp.ones(2, "bfloat16"), sample_weight=[1.0, 2.0]).dtype == "bfloat16"


def test_by_default_each_replica_divides_by_its_rows_times_the_replicas(mirrored, per_replica):
    strategy = mirrored(2)
    losses = per_replica(strategy, [1.0, 2.0, 3.0], [4.0, 5.0, 9.0])
    shares = strategy.run(rx.compute_average_loss, args=(losses,))
    assert [float(share) for share in shares.values] == [1.0, 3.0]
    assert float(strategy.reduce("sum", shares, axis=None)) == 4.0  # the mean of all six


@pytest.mark.parametrize("size", [-1, 2.5, True, "2", jnp.ones(2), jnp.float32(2)], ids=str)
def test_a_batch_size_is_a_non_negative_integer(size):
    with pytest.raises(ArgumentError, match="global_batch_size"):
        rx.compute_average_loss(jnp.ones(2), global_batch_size=size)


def test_a_scalar_loss_is_no_per_example_loss():
    with pytest.raises(ArgumentError, match="one loss per example"):
        rx.compute_average_loss(1.0)


def test_in_cross_replica_context_the_size_must_be_given(mirrored):
    with mirrored(2).scope():
        with pytest.raises(ContextError, match="global_batch_size"):
            rx.compute_average_loss(jnp.ones(2))
        assert float(rx.compute_average_loss(jnp.ones(2), global_batch_size=4)) == 0.5


def test_a_regularization_loss_counts_once_over_all_replicas(mirrored):
    strategy = mirrored(2)
    assert float(rx.scale_regularization_loss([1.0, jnp.array([2.0, 3.0])])) == 6.0
    for parts, total in (([1.0, jnp.array([2.0, 3.0])], 6.0), ([], 0.0)):
        share = strategy.run(lambda parts=parts: rx.scale_regularization_loss(parts))
        assert float(strategy.reduce("sum", share)) == total
    with strategy.scope(), pytest.raises(ContextError, match=r"strategy\.run"):
        rx.scale_regularization_loss([1.0])


def test_losses_pass_nan_through():
    assert np.isnan(rx.compute_average_loss(jnp.array([1.0, jnp.nan])))


def test_a_batch_size_that_is_too_small_is_told_once(caplog):
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    (batch,) = strategy.distribute_dataset([np.ones(8, np.float32)])

    def step(batch, size):
        return rx.compute_average_loss(batch, global_batch_size=size)

    for size in (8, 16, None, 0):
        strategy.run(lambda b, size=size: step(b, size), args=(batch,))
    assert not caplog.records
    for _ in range(2):
        assert float(strategy.reduce("sum", strategy.run(lambda b: step(b, 4), args=(batch,)))) == 2.0
    (record,) = caplog.records
    assert "2 times too large" in record.getMessage()


def test_there_may_be_more_tokens_than_rows(caplog):
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    (batch,) = strategy.distribute_dataset([np.ones((8, 5), np.float32)])
    strategy.run(lambda b: rx.compute_average_loss(b.reshape(-1), global_batch_size=8), args=(batch,))
    assert not caplog.records


def test_a_penalty_in_one_loss_with_the_data_is_counted_once_by_each_kind_of_gradient(mirrored, per_replica):
    two = mirrored(2)
    rows = per_replica(two, [1.0, 2.0], [3.0, 4.0])
    with two.scope():
        variable = rx.Variable(2.0)

    def loss(w, rows):
        return rx.compute_average_loss(w * rows) + rx.scale_regularization_loss(w * w)

    plain = two.run(lambda rows, w: jax.grad(loss)(w, rows), args=(rows, jnp.float32(2.0)))
    of_variable = two.run(lambda rows: rx.grad(lambda: loss(variable, rows), variable)(), args=(rows,))
    assert float(plain) == float(of_variable) == 2.5 + 4.0


@pytest.mark.daily(2)
@pytest.mark.parametrize("where", ["argument", "captured", "jitted"])
def test_shares_that_are_equal_on_all_replicas_add_up_in_each_kind_of_gradient(mirrored, where):
    two, x, w = mirrored(2), np.arange(8, dtype="float32").reshape(4, 2), jnp.array([1.0, 2.0])
    with two.scope():
        variable = rx.Variable(w)
    losses = {
        "mean": (lambda w, x: rx.compute_average_loss(jnp.square(x @ w)), lambda w: jnp.mean(jnp.square(x @ w))),
        "penalty": (lambda w, x: rx.scale_regularization_loss(jnp.sum(w * w)), lambda w: jnp.sum(w * w)),
    }
    for loss, plain in losses.values():
        loss = jax.jit(loss) if where == "jitted" else loss
        args = () if where == "captured" else (x,)
        of_array = two.run(lambda w, x=x, loss=loss: jax.value_and_grad(loss)(w, x), args=(w, *args))
        of_variable = two.run(
            lambda x=x, loss=loss: rx.value_and_grad(lambda: loss(variable.value, x), variable)(), args=args
        )
        for value, gradient in (of_array, of_variable):
            np.testing.assert_allclose(two.reduce("sum", value), plain(w), rtol=1e-6)
            np.testing.assert_allclose(gradient, jax.grad(plain)(w), rtol=1e-6)


def test_a_batch_that_was_not_distributed_is_refused():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    x = np.ones((4, 2), "float32")

    def step(x):
        return rx.compute_average_loss(jnp.sum(x, axis=1), global_batch_size=4)

    with pytest.raises(ArgumentError, match="distribute_dataset"):
        strategy.run(step, args=(x,))
    [batch] = strategy.distribute_dataset([x])
    assert float(strategy.reduce("sum", strategy.run(step, args=(batch,)), axis=None)) == 2.0
