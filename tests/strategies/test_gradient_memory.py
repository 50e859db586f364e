from __future__ import annotations

import gc

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ArgumentError, CheckpointError, ProgramError
from tests.collectives.compression.reference import int8_step
from tests.strategies.compressed import ROWS, SHAPE, Regression, compressed, data

INT8, POWER = rx.collectives.Int8(block_size=64, min_size=64), rx.collectives.PowerSGD(rank=1)


def gradient_of(w: np.ndarray, b: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    difference = 2 * (x @ w + b - y) / ROWS
    return x.T @ difference, difference.sum(0)


@pytest.mark.parametrize("replicas", [2, 3])
def test_training_equals_the_algorithm_in_numpy(replicas):
    training, batches = Regression(compressed(INT8, replicas)), data(5)
    training.train(batches)
    w, b, errors = np.zeros(SHAPE, "float32"), np.zeros(SHAPE[1:], "float32"), np.zeros((replicas, 120), "float32")
    for x, y in batches:
        parts = zip(np.split(x, replicas), np.split(y, replicas), strict=True)
        of_w, of_b = zip(*[gradient_of(w, b, *part) for part in parts], strict=True)
        total, errors = int8_step(np.stack([each.reshape(-1) for each in of_w]).astype("float32"), errors, 64)
        w, b = w - 0.1 * total.reshape(SHAPE), b - 0.1 * np.sum(of_b, 0)
    np.testing.assert_allclose(training.w.numpy(), w, atol=1e-5)
    np.testing.assert_allclose(training.b.numpy(), b, atol=1e-5)
    record = first_record(training)
    np.testing.assert_allclose(record["error"].numpy().reshape(-1), errors.sum(0), atol=1e-5)
    assert np.abs(errors).max() > 0


@pytest.mark.parametrize("compression", [INT8, POWER], ids=["int8", "powersgd"])
def test_there_is_memory_for_what_is_compressed_and_for_nothing_else(compression):
    training = Regression(compressed(compression))
    memory = training.strategy.gradient_memory
    assert "build" in repr(memory)
    training.train(data(1))
    record, _ = memory.values()  # None for the bias, which is small.
    assert record["error"].shape == SHAPE
    assert not record["error"].trainable
    assert record["error"].name == "w/compression/error"


def test_one_replica_needs_no_compression():
    exact, training = Regression(rx.MirroredStrategy(devices=1)), Regression(compressed(INT8, 1))
    assert training.train(data(3)) == exact.train(data(3))
    np.testing.assert_array_equal(training.w.numpy(), exact.w.numpy())
    assert not training.strategy.gradient_memory


@pytest.mark.daily(2)
@pytest.mark.parametrize("compression", [INT8, POWER], ids=["int8", "powersgd"])
@pytest.mark.parametrize("rows", [1, 2, 4])
def test_a_step_on_fewer_replicas_leaves_the_others_memory_alone(compression, rows):
    training = Regression(compressed(compression, 3))
    training.train(data(2))
    record = first_record(training)
    before = np.asarray(record["error"]._value)
    [(x, y)] = data(1, rows, seed=1)
    training.train([(x, y)])
    after = np.asarray(record["error"]._value)
    taking_part = 1 if rows == 1 else 2
    np.testing.assert_array_equal(after[2], before[2])
    if taking_part == 1:
        np.testing.assert_array_equal(after, before)
    else:
        assert np.abs(after[:2] - before[:2]).max() > 0
    assert np.isfinite(training.w.numpy()).all()


@pytest.mark.parametrize("compression", [INT8, POWER], ids=["int8", "powersgd"])
def test_training_goes_on_from_a_checkpoint(tmp_path, compression):
    training = Regression(compressed(compression))
    checkpoint = rx.Checkpoint(training=training.variables, memory=memory_of(training))
    training.train(data(4))
    path = checkpoint.write(str(tmp_path / "saved"))
    record = first_record(training)
    saved = {name: variable.numpy() for name, variable in record.items()}
    later = Regression(compressed(compression, 3))
    rx.Checkpoint(training=later.variables, memory=memory_of(later)).restore(path)
    restored = first_record(later)
    for name, value in saved.items():
        np.testing.assert_allclose(restored[name].numpy(), value, atol=1e-6)
    components = np.asarray(restored["error"]._value)
    np.testing.assert_allclose(components[0], components[1], rtol=1e-5, atol=1e-6)  # Shared out evenly.


def first_record(training: Regression) -> dict[str, rx.Variable]:
    return training.strategy.gradient_memory["0"]


def memory_of(training: Regression) -> rx.GradientMemory:
    training.strategy.gradient_memory.build(training.variables)
    return training.strategy.gradient_memory


def test_a_checkpoint_of_a_memory_that_is_not_made_says_what_to_do():
    training = Regression(compressed(INT8))
    with pytest.raises(CheckpointError, match=r"call build\(model.trainable_variables\) first"):
        rx.Checkpoint(memory=training.strategy.gradient_memory)


def test_reset_forgets():
    training, batches = Regression(compressed(POWER)), data(3)
    first = training.train(batches)
    for variable in training.variables:
        variable.assign(np.zeros(variable.shape))
    training.strategy.gradient_memory.reset()
    np.testing.assert_allclose(training.train(batches), first, rtol=1e-6)


def test_build_makes_what_the_first_step_would_make():
    training = Regression(compressed(INT8))
    memory = memory_of(training)
    assert list(memory) == ["0", "1"]
    training.train(data(1))
    assert list(memory) == ["0", "1"]
    np.testing.assert_array_equal(memory["1"]["error"].numpy(), np.zeros(SHAPE))


def test_memory_goes_with_the_variable_it_belongs_to():
    strategy = compressed(INT8)
    training = Regression(strategy)
    training.train(data(1))
    assert len(strategy.gradient_memory) == 2
    del training
    jax.clear_caches()
    gc.collect()
    assert len(strategy.gradient_memory) == 0


def test_each_call_of_a_step_has_a_memory_of_its_own():
    training = Regression(compressed(INT8))

    def step(batch):
        _, first = rx.value_and_grad(lambda: training.loss(*batch), training.variables)()
        _, second = rx.value_and_grad(lambda: 3 * training.loss(*batch), training.variables)()
        training.update(first)
        training.update(second)

    for batch in training.strategy.distribute_dataset(data(2)):
        training.strategy.run(step, args=(batch,))
    memory = training.strategy.gradient_memory
    one, other = memory["0"], memory["2"]
    np.testing.assert_allclose(3 * one["error"].numpy(), other["error"].numpy(), atol=1e-5)


def test_a_step_that_is_not_finite_leaves_the_memory_as_it_was():
    training = Regression(compressed(INT8), rate=0.0)
    training.train(data(2))
    record = first_record(training)
    before = np.asarray(record["error"]._value)
    [(x, y)] = data(1)
    x[0, 0] = np.inf
    training.rate = 0.1
    training.step = rx.function(training._step)
    training.train([(x, y)])
    np.testing.assert_array_equal(record["error"]._value, before)
    assert np.isnan(training.w.numpy()).any()  # Nobody scaled the loss, so nothing was skipped.


@pytest.mark.parametrize("compression", [INT8, POWER], ids=["int8", "powersgd"])
@pytest.mark.nightly
def test_op_by_op_it_is_the_same(compression):
    fast, slow = Regression(compressed(compression)), Regression(compressed(compression))
    fast.train(data(2))
    rx.config.run_eagerly(True)
    try:
        slow.train(data(2))
    finally:
        rx.config.run_eagerly(False)
    np.testing.assert_allclose(slow.w.numpy(), fast.w.numpy(), atol=1e-5)


def test_second_derivatives_are_exact():
    training = Regression(compressed(INT8))
    plain = Regression(rx.MirroredStrategy(devices=2))

    def step_of(each):
        def step(batch):
            def penalty():
                _, gradients = rx.value_and_grad(lambda: each.loss(*batch), [each.w])()
                return jnp.sum(gradients[0] ** 2)

            return rx.value_and_grad(penalty, [each.w], aggregation=None)()[1]

        return step

    found = [
        each.strategy.run(step_of(each), args=(next(iter(each.strategy.distribute_dataset(data(1)))),))
        for each in (training, plain)
    ]
    np.testing.assert_allclose(*[np.asarray(each[0].values[0]) for each in found], rtol=1e-6)
    assert not training.strategy.gradient_memory


def test_a_loop_of_jax_cannot_remember():
    training = Regression(compressed(INT8))

    def step(batch):
        def body(carry, _):
            return carry + rx.value_and_grad(lambda: training.loss(*batch), [training.w])()[1][0], None

        return jax.lax.scan(body, jnp.zeros(SHAPE), None, length=2)[0]

    [batch] = training.strategy.distribute_dataset(data(1))
    with pytest.raises(ProgramError, match=r"error_feedback=False"):
        training.strategy.run(step, args=(batch,))


def test_without_a_memory_a_loop_of_jax_may_compress():
    training = Regression(compressed(rx.collectives.Int8(min_size=64, error_feedback=False)))

    def step(batch):
        def body(carry, _):
            return carry + rx.value_and_grad(lambda: training.loss(*batch), [training.w])()[1][0], None

        return jax.lax.scan(body, jnp.zeros(SHAPE), None, length=2)[0]

    [batch] = training.strategy.distribute_dataset(data(1))
    [(x, y)] = data(1)
    expected, _ = gradient_of(np.zeros(SHAPE), np.zeros(SHAPE[1:]), x, y)
    np.testing.assert_allclose(training.strategy.run(step, args=(batch,)), 2 * expected, atol=0.2)


def test_other_sums_are_exact_unless_they_ask():
    strategy, values = compressed(INT8), np.random.default_rng(0).normal(size=(4, 200)).astype("float32")
    options = rx.CommunicationOptions(compression=rx.collectives.Int8(error_feedback=False, min_size=1))

    def sums(rows):
        replica = rx.get_replica_context()
        return replica.all_reduce("sum", rows[0]), replica.all_reduce("sum", rows[0], options)

    def bad(rows):
        return rx.get_replica_context().all_reduce("sum", rows, rx.CommunicationOptions(compression="int8"))

    [batch] = strategy.distribute_dataset([values])
    exact, rounded = strategy.run(sums, args=(batch,))
    np.testing.assert_array_equal(exact, values[0] + values[2])
    assert 0 < np.abs(rounded - exact).max() < 0.1
    with pytest.raises(ArgumentError, match=r"error_feedback=False"):
        strategy.run(bad, args=(batch,))


def test_a_rounded_sum_is_differentiated_as_a_sum():
    strategy = compressed(None)
    options = rx.CommunicationOptions(compression=rx.collectives.Int8(error_feedback=False, min_size=1))

    def step(rows):
        w = jnp.ones(8)

        def loss(w):
            return jnp.sum(rx.get_replica_context().all_reduce("sum", w * rows[0], options))

        return jax.grad(loss)(jax.lax.pcast(w, "replica", to="varying"))

    [batch] = strategy.distribute_dataset([np.arange(16, dtype="float32").reshape(2, 8)])
    found = strategy.run(step, args=(batch,))
    np.testing.assert_allclose(found.values[1], np.arange(8, 16))


def test_fit_says_once_that_it_does_not_compress(caplog):
    strategy = compressed("int8")
    with strategy.scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])
        model.compile("sgd", "mse")
    for _ in range(2):
        model.fit(np.ones((4, 8)), np.ones((4, 2)), verbose=0)
        model.make_train_function(force=True)
    said = [record.message for record in caplog.records if "Model.fit" in record.message]
    assert len(said) == 1
    assert "Int8" in said[0]


@pytest.mark.parametrize(("replicas", "compression"), [(1, INT8), (2, None), (2, rx.collectives.Int8(min_size=10**6))])
def test_where_nothing_is_compressed_a_checkpoint_has_no_memory(tmp_path, replicas, compression):
    strategies = []

    def checkpoint(replicas: int, compression: rx.collectives.Int8 | None) -> rx.Checkpoint:
        strategies.append(strategy := compressed(compression, replicas))
        with strategy.scope():
            w = rx.Variable(np.ones(SHAPE, "float32"))
        strategy.gradient_memory.build([w])
        return rx.Checkpoint(w=w, memory=strategy.gradient_memory)

    checkpoint(replicas, compression).write(tmp_path / "without")
    checkpoint(replicas, compression).restore(tmp_path / "without")
    remembering = checkpoint(2, INT8)
    with pytest.raises(CheckpointError, match=r"only in the objects: .*memory/0/error.*partial=True"):
        remembering.restore(tmp_path / "without")
    remembering.restore(tmp_path / "without", partial=True)
    remembering.write(tmp_path / "with")
    with pytest.raises(CheckpointError, match=r"Only in the checkpoint: .*memory/0/error"):
        checkpoint(replicas, compression).restore(tmp_path / "with")
