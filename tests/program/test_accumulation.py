"""Accumulated gradients are those of the whole batch, and replicas communicate once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from tests.contract.problems import batches
from tests.hosts_by_name import HOSTS_AND_LAYOUT

HOSTS = {"one device": lambda: rx.OneDeviceStrategy("cpu:0"), **HOSTS_AND_LAYOUT}
FEW = ("three", "sharded", "layout")
SIZES = (24, 23, 6, 1)


def trained(host, steps: int | None, sizes=SIZES, aggregation="sum"):
    """Trains a perceptron that counts its hits; returns the losses, the parameters and the metric's result."""
    with host.scope():
        keras.utils.set_random_seed(1)
        model = keras.Sequential(
            [keras.Input((64,)), keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(10)]
        )
        optimizer, accuracy = keras.optimizers.Adam(1e-2), keras.metrics.SparseCategoricalAccuracy()
    per_example = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def train_step(batch):
        def loss_fn(x, y):
            logits = model(x, training=True)
            accuracy.update_state(y, logits)
            each = per_example(y, logits)
            return (rx.compute_average_loss(each) if aggregation == "sum" else jnp.mean(each)), logits

        fn = rx.value_and_grad(loss_fn, model.trainable_variables, has_aux=True, aggregation=aggregation)
        fn = fn if steps is None else rx.accumulate_gradients(fn, steps)
        (loss, logits), gradients = fn(*batch)
        assert logits.shape == (batch[0].shape[0], 10)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss, logits

    losses, outputs = [], []
    for batch in host.distribute_dataset(batches(sizes)):
        loss, logits = host.run(train_step, args=(batch,))
        losses.append(float(host.reduce(aggregation, loss)))
        outputs.append(np.asarray(host.gather(logits, axis=0)))
    return losses, [np.asarray(v.value) for v in model.trainable_variables], float(accuracy.result()), outputs


@pytest.fixture(scope="module")
def whole():
    return trained(rx.OneDeviceStrategy("cpu:0"), None)


def assert_same(ours, theirs, tolerance=1e-6):
    np.testing.assert_allclose(ours[0], theirs[0], rtol=5 * tolerance)
    for a, b in zip(ours[1], theirs[1], strict=True):
        assert np.linalg.norm(a - b) <= tolerance * np.linalg.norm(b)
    assert ours[2] == theirs[2]
    for a, b in zip(ours[3], theirs[3], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", FEW)
def test_the_result_is_that_of_the_whole_batch(name, whole):
    assert_same(trained(HOSTS[name](), 3), whole)


@pytest.mark.nightly
@pytest.mark.parametrize("aggregation", ["sum", "mean"])
@pytest.mark.parametrize("steps", [1, 2, 5, 8])
@pytest.mark.parametrize("name", HOSTS)
def test_the_result_is_that_of_the_whole_batch_for_any_number_of_micro_batches(name, steps, aggregation, whole):
    assert_same(trained(HOSTS[name](), steps, aggregation=aggregation), whole)


def test_means_are_weighted_by_rows():
    w = rx.Variable(2.0)
    x = jnp.arange(5.0)
    fn = rx.value_and_grad(lambda x: jnp.mean(w.value**2 * x), [w], aggregation="mean")
    (loss, [gradient]), (expected, [of_whole]) = rx.accumulate_gradients(fn, 3)(x), fn(x)
    np.testing.assert_allclose([loss, gradient], [expected, of_whole], rtol=1e-6)


def test_one_sum_over_the_replicas_for_a_step(mirrored):
    two = mirrored(2)
    with two.scope():
        w, b = rx.Variable(jnp.ones((3, 2))), rx.Variable(jnp.ones(2))

    @rx.function
    def step(x):
        def replica(x):
            loss = lambda x: rx.compute_average_loss(jnp.sum((x @ w.value + b.value) ** 2, -1))  # noqa: E731
            return rx.accumulate_gradients(rx.grad(loss, [w, b]), 4)(x)

        return two.run(replica, args=(x,))

    (batch,) = two.distribute_dataset([np.ones((16, 3), np.float32)])
    text = step.lower(batch).compile().as_text()
    assert text.count(" all-reduce(") == 1
    assert "while(" in text


def test_what_the_loss_assigns_goes_on_from_one_micro_batch_to_the_next(mirrored):
    three = mirrored(3)
    with three.scope():
        w, calls = rx.Variable(1.0), rx.Variable(0)
        norm = keras.layers.BatchNormalization(momentum=0.5)
        norm.build((None, 1))
        drop = keras.layers.Dropout(0.5, seed=3)
        drop.build((None, 1))
        total = keras.metrics.Sum()
    x = np.arange(24, dtype=np.float32).reshape(24, 1)

    def step(x):
        def loss(x):
            calls.assign_add(1)
            total.update_state(x)
            kept = drop(jnp.ones((2, 64)), training=True)
            return rx.compute_average_loss(norm(x, training=True)[:, 0] * w.value), kept

        ((_, kept), _) = rx.accumulate_gradients(rx.value_and_grad(loss, [w], has_aux=True), 4)(x)
        return kept

    (batch,) = three.distribute_dataset([x])
    kept = three.gather(three.run(step, args=(batch,)), axis=0)
    masks = np.asarray(kept).reshape(12, -1)  # 4 micro-batches on each of 3 replicas, of 2 rows
    assert len({mask.tobytes() for mask in masks}) == 12
    assert calls.numpy() == 4
    assert float(total.result()) == x.sum()
    mean, variance = 0.0, 1.0
    for number in range(4):  # each replica has 8 rows
        parts = [x[8 * replica + 2 * number :][:2] for replica in range(3)]
        mean = 0.5 * mean + 0.5 * np.mean([part.mean() for part in parts])
        variance = 0.5 * variance + 0.5 * np.mean([part.var() for part in parts])
    np.testing.assert_allclose(norm.moving_mean.value, [mean], rtol=1e-6)
    np.testing.assert_allclose(norm.moving_variance.value, [variance], rtol=1e-6)


def test_auxiliary_values_are_stacked_and_rows_put_together():
    w = rx.Variable(2.0)
    fn = rx.value_and_grad(lambda x: ((w * x).sum(), {"rows": x + 1, "mean": x.mean(), "name": "x"}), [w], has_aux=True)
    (_, aux), _ = rx.accumulate_gradients(fn, 3)(jnp.arange(8.0))
    np.testing.assert_array_equal(aux["rows"], np.arange(8.0) + 1)
    np.testing.assert_allclose(aux["mean"], [1.0, 4.0, 6.5])
    assert aux["name"] == "x"


@pytest.mark.parametrize("steps", [3, 4])
def test_each_micro_batch_gets_another_key(steps):
    w = rx.Variable(2.0)
    fn = rx.value_and_grad(lambda x, key: (w * x.sum(), jax.random.normal(key)), [w], has_aux=True)
    (_, numbers), _ = rx.accumulate_gradients(fn, steps)(jnp.arange(8.0), jax.random.key(0))
    assert len(set(np.asarray(numbers).tolist())) == steps


def test_variables_that_the_loss_does_not_use_have_no_gradient():
    w, unused = rx.Variable(2.0), rx.Variable(1.0)
    gradients = rx.accumulate_gradients(rx.grad(lambda x: (w * x).sum(), {"w": w, "unused": unused}), 2)(jnp.ones(4))
    assert gradients["unused"] is None
    assert float(gradients["w"]) == 4.0


def test_a_model_may_be_built_by_its_first_micro_batch(mirrored):
    two = mirrored(2)
    with two.scope():
        model = keras.Sequential([keras.layers.Dense(1)])

    def step(x):
        fn = rx.value_and_grad(lambda x: rx.compute_average_loss(model(x)[:, 0]), model.trainable_variables)
        return rx.accumulate_gradients(fn, 2)(x)[1]

    (batch,) = two.distribute_dataset([np.ones((8, 3), np.float32)])
    gradient, _ = two.run(step, args=(batch,))
    np.testing.assert_allclose(gradient, np.ones((3, 1)))


def test_sums_of_short_floats_are_made_in_float32():
    w = rx.Variable(jnp.ones((), jnp.bfloat16))
    fn = rx.value_and_grad(lambda x: (w.value * x).sum(), [w])
    _, [gradient] = rx.accumulate_gradients(fn, 512)(jnp.ones(512, jnp.bfloat16))
    assert gradient.dtype == jnp.bfloat16
    assert float(gradient) == 512.0


def test_a_maximum_is_refused_in_a_metric_here_too(mirrored):
    two = mirrored(2)
    with two.scope():
        w, metric = rx.Variable(1.0), keras.metrics.Sum()

    def step(x):
        def loss(x):
            metric.total.assign(jnp.maximum(metric.total, x.max()))
            return rx.compute_average_loss(x * w.value)

        return rx.accumulate_gradients(rx.grad(loss, [w]), 2)(x)

    (batch,) = two.distribute_dataset([np.ones(8, np.float32)])
    with pytest.raises(rx.errors.VariableError, match="total"):
        two.run(step, args=(batch,))


def test_a_counter_that_differs_between_replicas_is_refused(mirrored):
    two = mirrored(2)
    with two.scope():
        w, last = rx.Variable(1.0), rx.Variable(0.0, name="last")

    def step(x):
        def loss(x):
            last.assign(x[0])
            return rx.compute_average_loss(x * w.value)

        return rx.accumulate_gradients(rx.grad(loss, [w]), 2)(x)

    (batch,) = two.distribute_dataset([np.arange(8, dtype=np.float32)])
    with pytest.raises(rx.ReplicaDivergenceError, match="last"):
        two.run(step, args=(batch,))


@pytest.mark.daily(1)
def test_operation_by_operation_the_numbers_are_the_same(either_way, mirrored):
    two = mirrored(2)
    with two.scope():
        w, calls = rx.Variable(2.0), rx.Variable(0)

    def step(x):
        def loss(x):
            calls.assign_add(1)
            return rx.compute_average_loss((x * w.value) ** 2)

        return rx.accumulate_gradients(rx.value_and_grad(loss, [w]), 3)(x)

    (batch,) = two.distribute_dataset([np.arange(16, dtype=np.float32)])
    loss, [gradient] = two.run(step, args=(batch,))
    np.testing.assert_allclose(two.reduce("sum", loss), 4 * np.mean(np.arange(16.0) ** 2), rtol=1e-6)
    np.testing.assert_allclose(gradient, 4 * np.mean(np.arange(16.0) ** 2), rtol=1e-6)
    assert calls.numpy() == 3


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda fn: rx.accumulate_gradients(lambda x: x, 2), rx.errors.ArgumentError, "rx.value_and_grad"),
        (lambda fn: rx.accumulate_gradients(fn, 0), rx.errors.ArgumentError, "at least 1"),
        (lambda fn: rx.accumulate_gradients(fn, True), rx.errors.ArgumentError, "at least 1"),
        (lambda fn: rx.accumulate_gradients(fn, 2)(1.0), rx.errors.ArgumentError, "rows"),
        (lambda fn: rx.accumulate_gradients(fn, 2)((jnp.ones(3), jnp.ones(4))), rx.errors.BatchError, "differ"),
        (lambda fn: rx.accumulate_gradients(fn, 2)(jnp.ones((0, 2))), rx.errors.BatchError, "no rows"),
    ],
)
def test_what_makes_no_sense_is_refused(call, error, text):
    w = rx.Variable(1.0)
    with pytest.raises(error, match=text):
        call(rx.value_and_grad(lambda x: jnp.sum(w * x[0]), [w]))
