"""`Model.fit`, `evaluate` and `predict` on islands that are threads."""

import functools

import numpy as np
import pytest

import replicax as rx
from tests.islands.threads import run_islands

_random = np.random.default_rng(1)
X = _random.normal(size=(70, 4)).astype("float32")
Y = (X @ _random.normal(size=(4, 1))).astype("float32")


def compiled_model(strategy, optimizer=None, layers=(), seed=3):
    import keras

    with strategy.scope():
        initializer = keras.initializers.RandomNormal(seed=seed + strategy.island_index)
        model = keras.Sequential(
            [
                keras.layers.Input((4,)),
                *[make() for make in layers],
                keras.layers.Dense(1, kernel_initializer=initializer),
            ]
        )
        model.compile(optimizer or keras.optimizers.SGD(0.05), "mse", metrics=["mae"])
    return model


def fitted(strategy, **arguments):
    model = compiled_model(strategy)
    history = model.fit(X, Y, **{"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0, **arguments})
    return (
        history.history,
        model.get_weights(),
        model.evaluate(X, Y, batch_size=16, verbose=0),
        model.predict(X, verbose=0),
    )


@functools.cache
def on_two_islands(every):
    return run_islands(
        functools.partial(fitted, validation_data=(X[:20], Y[:20])), functools.partial(rx.LocalSGDStrategy, every)
    )


def as_one(islands, epochs=2, rows=8, rate=0.05):
    """Mean-squared error by gradient descent where the islands' batches are one, each with its own rows."""
    import keras

    w = np.asarray(keras.initializers.RandomNormal(seed=3)((4, 1)), "float64")
    b = np.zeros(1)
    own = [(X[i::islands], Y[i::islands]) for i in range(islands)]
    for _ in range(epochs):
        for start in range(0, len(own[0][0]), rows):
            x = np.concatenate([each[start : start + rows] for each, _ in own])
            y = np.concatenate([each[start : start + rows] for _, each in own])
            error = 2 * (x @ w + b - y) / len(x)
            w, b = w - rate * x.T @ error, b - rate * error.sum(axis=0)
    return w, b


def test_fit_with_one_step_is_that_of_all_rows_together():
    """The last batches have 3 rows of 35: islands weigh by rows."""
    for _, (kernel, bias), _, _ in on_two_islands(1):
        w, b = as_one(2)
        np.testing.assert_allclose(kernel, w, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(bias, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("every", [1, 3])
def test_logs_are_of_all_rows_and_the_same_on_all_islands(every):
    (history, weights, evaluated, predicted), other = on_two_islands(every)
    assert history == other[0]
    assert evaluated == other[2]
    for a, b in zip(weights, other[1], strict=True):
        np.testing.assert_array_equal(a, b)
    error = (X @ weights[0] + weights[1]) - Y
    np.testing.assert_allclose(evaluated, [np.mean(error**2), np.mean(np.abs(error))], rtol=1e-5)
    np.testing.assert_allclose(history["val_loss"][-1], np.mean(error[:20] ** 2), rtol=1e-5)
    np.testing.assert_allclose(predicted, X @ weights[0] + weights[1], rtol=1e-5, atol=1e-6)


def test_islands_with_another_number_of_steps_end_their_epochs_together():
    def body(strategy):
        rows = 60 if strategy.island_index else 16
        data = [(X[i : i + 4], Y[i : i + 4]) for i in range(0, rows, 4)]
        with strategy.scope():
            model = compiled_model(strategy)
        options = rx.InputOptions(auto_shard_policy="off")
        model.fit(strategy.distribute_dataset(data, options), epochs=2, verbose=0)
        return model.get_weights()

    one, other = run_islands(body, functools.partial(rx.DiLoCoStrategy, 4))
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


def test_statistics_are_averaged_and_dropout_differs():
    import keras

    layers = (lambda: keras.layers.BatchNormalization(momentum=0.5), lambda: keras.layers.Dropout(0.5, seed=4))

    def body(strategy):
        model = compiled_model(strategy, keras.optimizers.Adam(1e-3), layers)
        model.fit(X, Y, batch_size=5, epochs=1, verbose=0)
        seeds = [v for v in model.non_trainable_variables if v.name == "seed_generator_state"]
        return model.get_weights(), [np.asarray(seed).tolist() for seed in seeds], model.optimizer.iterations.numpy()

    (weights, seeds, steps), (others, other_seeds, _) = run_islands(
        body, functools.partial(rx.LocalSGDStrategy, 4), devices=2
    )
    statistics = [w for w in weights if w.shape == (4,)]
    assert len(statistics) == 4
    for a, b in zip(weights, others, strict=True):
        if a.dtype == np.float32:
            np.testing.assert_array_equal(a, b)
    assert seeds != other_seeds
    assert steps == 7


@pytest.mark.nightly
@pytest.mark.slow
def test_a_step_that_runs_eagerly_is_one():
    def body(strategy):
        model = compiled_model(strategy)
        model.compile("sgd", "mse", run_eagerly=True)
        model.fit(X[:24], Y[:24], batch_size=4, verbose=0)
        return model.get_weights(), strategy.steps

    (weights, steps), (others, _) = run_islands(body, functools.partial(rx.LocalSGDStrategy, 3))
    assert steps == 3
    for a, b in zip(weights, others, strict=True):
        np.testing.assert_array_equal(a, b)


def test_steps_called_one_by_one_are_this_islands():
    def body(strategy):
        model = compiled_model(strategy)
        for i in range(5):
            model.train_on_batch(X[i : i + 4], Y[i : i + 4])
        with pytest.raises(rx.errors.IslandDivergenceError):
            model.get_weights()
        strategy.synchronize()
        return model.get_weights()

    one, other = run_islands(body, functools.partial(rx.LocalSGDStrategy, 3))
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)
