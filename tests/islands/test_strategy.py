"""Local SGD and DiLoCo in custom loops, on islands that are threads, against NumPy."""

import functools

import numpy as np
import pytest

import replicax as rx
from tests.islands.threads import run_islands

ROWS, RATE = 4, 0.1
_random = np.random.default_rng(0)
X = _random.normal(size=(96, 5)).astype("float32")
Y = (X @ _random.normal(size=(5, 1)) + 0.1).astype("float32")
BATCHES = [(X[start : start + ROWS], Y[start : start + ROWS]) for start in range(0, len(X), ROWS)]


class Training:
    """The loop of one island: a linear model, SGD by hand, and a count of its rows."""

    def __init__(self, strategy):
        self.strategy = strategy
        with strategy.scope():
            self.w = rx.Variable(np.full((5, 1), 1.0 + strategy.island_index, "float32"), name="w")
            self.b = rx.Variable(np.zeros(1, "float32"), name="b")
            self.rows = rx.Variable(0.0, synchronization="on_read", aggregation="sum", name="rows")
        self.train = rx.function(lambda batch: strategy.reduce("sum", strategy.run(self.step, args=(batch,))))

    def step(self, batch):
        x, y = batch

        def loss():
            return rx.compute_average_loss(((x @ self.w + self.b - y) ** 2)[:, 0], global_batch_size=ROWS)

        value, grads = rx.value_and_grad(loss, [self.w, self.b])()
        for variable, grad in zip([self.w, self.b], grads, strict=True):
            variable.assign_sub(RATE * grad)
        self.rows.assign_add(float(x.shape[0]))
        return value

    def fit(self, batches=BATCHES):
        for batch in self.strategy.distribute_dataset(batches):
            self.train(batch)
        return self

    def values(self):
        return [variable.numpy() for variable in (self.w, self.b)]


def local_steps(values, batches):
    w, b = (value.astype("float64") for value in values)
    for x, y in batches:
        error = 2 * (x @ w + b - y) / len(x)
        w, b = w - RATE * x.T @ error, b - RATE * error.sum(axis=0)
    return [w, b]


def diloco(islands, every, rate=0.7, momentum=0.9, batches=BATCHES):
    """DiLoCo as the paper has it; with rate=1 and momentum=0 it is local SGD."""
    values = [np.full((5, 1), 1.0), np.zeros(1)]
    moments = [np.zeros_like(value) for value in values]
    own = [batches[island::islands] for island in range(islands)]
    for start in range(0, len(own[0]), every):
        trained = [local_steps(values, each[start : start + every]) for each in own]
        for i, value in enumerate(values):
            gradient = value - np.mean([each[i] for each in trained], axis=0)
            moments[i] = momentum * moments[i] + gradient
            values[i] = value - rate * (gradient + momentum * moments[i])
    return values


def body(strategy):
    training = Training(strategy).fit()
    strategy.synchronize()
    return training.values(), float(training.rows.numpy()), strategy.bytes_exchanged


@pytest.mark.daily(2)
@pytest.mark.parametrize(("islands", "devices"), [(1, 2), (2, 1), (2, 2), pytest.param(3, 1), pytest.param(4, 2)])
def test_local_sgd_with_one_step_is_mirrored_training_on_all_batches_together(islands, devices):
    found = run_islands(body, functools.partial(rx.LocalSGDStrategy, 1), islands, devices)
    values = [np.full((5, 1), 1.0), np.zeros(1)]
    for start in range(0, len(X), islands * ROWS):
        values = local_steps(values, [(X[start : start + islands * ROWS], Y[start : start + islands * ROWS])])
    for own, rows, _ in found:
        assert rows == len(X)
        for expected, value, first in zip(values, own, found[0][0], strict=True):
            np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)
            assert (value == first).all()


@pytest.mark.parametrize("every", [2, 3, 12])
def test_local_sgd_takes_the_mean_after_every_round(every):
    found = run_islands(body, functools.partial(rx.LocalSGDStrategy, every))
    for own, _, _ in found:
        for expected, value in zip(diloco(2, every, 1.0, 0.0), own, strict=True):
            np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.daily(2)
@pytest.mark.parametrize("islands", [1, 2, 3])
def test_diloco_is_the_papers_update(islands):
    found = run_islands(body, functools.partial(rx.DiLoCoStrategy, 4), islands)
    for own, _, _ in found:
        for expected, value in zip(diloco(islands, 4), own, strict=True):
            np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-5)


def test_a_round_sends_its_bytes_once():
    sent = [run_islands(body, functools.partial(rx.LocalSGDStrategy, every))[0][2] for every in (1, 4, 12)]
    first = 4 * (5 + 1 + 1)  # the first values
    model, count = 4 * (5 + 1), 4
    assert [each - first - count for each in sent] == [12 * model, 3 * model, model]


def test_reading_in_a_round_is_an_error_that_says_what_to_do():
    def body(strategy):
        training = Training(strategy)
        batches = iter(strategy.distribute_dataset(BATCHES))
        training.train(next(batches))
        for variable in (training.w, training.rows):
            for read in (lambda v=variable: v.numpy(), lambda v=variable: v + 1, lambda v=variable: v.value):
                with pytest.raises(rx.errors.IslandDivergenceError, match=variable.name) as info:
                    read()
                assert "strategy.synchronize()" in str(info.value)
        assert (info.value.variable, info.value.every, info.value.counts) == ("rows", 3, True)
        with strategy.own_values():
            own = training.w.numpy()
        assert strategy.step_in_round == 1
        training.train(next(batches))
        training.train(next(batches))
        assert strategy.step_in_round == 0
        return own, training.w.numpy()

    (own0, w0), (own1, w1) = run_islands(body, functools.partial(rx.LocalSGDStrategy, 3))
    assert (own0 != own1).any()
    assert (w0 == w1).all()


def test_a_barrier_by_name_is_refused_between_islands():
    def body(strategy):
        with pytest.raises(rx.errors.ContextError, match=r"strategy\.synchronize\(\) waits for all of them"):
            strategy.barrier("data are prepared")

    run_islands(body, functools.partial(rx.LocalSGDStrategy, 3))
    rx.LocalSGDStrategy(3).barrier("alone")


def test_islands_with_more_batches_are_waited_for_at_the_end():
    def body(strategy):
        own = BATCHES[: 5 if strategy.island_index else 11]
        training = Training(strategy).fit(own * strategy.num_islands)
        strategy.synchronize()
        return training.values()

    one, other = run_islands(body, functools.partial(rx.DiLoCoStrategy, 2))
    for a, b in zip(one, other, strict=True):
        assert (a == b).all()


@pytest.mark.nightly
def test_steps_run_operation_by_operation_are_counted():
    def body(strategy):
        rx.config.run_eagerly(True)
        training = Training(strategy)
        for batch in strategy.distribute_dataset(BATCHES[:8]):
            strategy.run(training.step, args=(batch,))
        rx.config.run_eagerly(False)
        strategy.synchronize()
        return training.values(), strategy.steps

    for own, steps in run_islands(body, functools.partial(rx.LocalSGDStrategy, 2)):
        assert steps == 4
        for expected, value in zip(diloco(2, 2, 1.0, 0.0, BATCHES[:8]), own, strict=True):
            np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)


def test_a_metric_that_is_reset_counts_anew():
    def body(strategy):
        training = Training(strategy).fit()
        strategy.synchronize()
        first = float(training.rows.numpy())
        training.rows.assign(0.0)
        training.fit(BATCHES[:6])
        strategy.synchronize()
        return first, float(training.rows.numpy())

    assert run_islands(body, functools.partial(rx.LocalSGDStrategy, 5)) == [(96.0, 24.0)] * 2
