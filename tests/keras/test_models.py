"""Models remember their strategy; models without one, and Keras itself, stay as they were."""

from __future__ import annotations

import contextlib
import copy
import inspect
import warnings

import jax
import keras
import numpy as np
import pytest
from keras import layers

import replicax as rx
from replicax.errors import ContextError, StrategyMismatchError
from replicax.keras.models import install_trainer_hooks, strategy_of
from tests.keras.comparing import CLASSES, LABELS, X, Y, assert_same, classifier, made, state_of, trained, worked


def devices_of(model):
    return {device for variable in model.variables for device in variable.value.sharding.device_set}


# What remembers a strategy.


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = layers.Dense(4)
        self.normalised = layers.BatchNormalization()
        self.outputs = layers.Dense(CLASSES)

    def call(self, x, training=False):
        return self.outputs(self.normalised(self.hidden(x), training=training))


def functional():
    inputs = keras.Input((X.shape[1],))
    return keras.Model(inputs, layers.Dense(CLASSES)(layers.BatchNormalization()(inputs)))


KINDS = {
    "sequential": lambda: keras.Sequential([keras.Input((X.shape[1],)), layers.Dense(CLASSES)]),
    "sequential without a shape": lambda: keras.Sequential([layers.BatchNormalization(), layers.Dense(CLASSES)]),
    "functional": functional,
    "subclassed": Subclassed,
}


@pytest.mark.daily(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("in_scope", [False, True])
def test_a_model_remembers_its_strategy_in_and_out_of_the_scope(three, kind, in_scope):
    def work(model):
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return trained(model, X, Y, epochs=1)

    model = made(three, KINDS[kind])
    with three.scope() if in_scope else contextlib.nullcontext():
        actual = work(model)
    assert strategy_of(model) is three
    assert devices_of(model) == set(three.devices)
    assert_same(actual, work(made(None, KINDS[kind])))


def test_a_model_without_a_strategy_stays_on_its_device():
    model = made(None, classifier)
    worked(model, X, Y)
    assert strategy_of(model) is None
    assert devices_of(model) == {jax.devices()[0]}


LOOPS = {
    "fit": lambda model: model.fit(X, Y, batch_size=7, epochs=2, shuffle=False, verbose=0),
    "evaluate": lambda model: model.evaluate(X, Y, batch_size=7, verbose=0),
    "predict": lambda model: model.predict(X, batch_size=7, verbose=0),
    "train_on_batch": lambda model: model.train_on_batch(X, Y),
    "test_on_batch": lambda model: model.test_on_batch(X, Y),
    "predict_on_batch": lambda model: model.predict_on_batch(X),
}


@pytest.mark.daily(3)
@pytest.mark.parametrize("loop", LOOPS)
def test_a_model_made_outside_joins_the_strategy_in_whose_scope_it_is_used(three, loop, recwarn):
    model, reference = made(None, classifier), made(None, classifier)
    for each in (model, reference):
        each.fit(X, Y, batch_size=7, epochs=1, shuffle=False, verbose=0)  # It has a state and compiled steps already.
    with three.scope():
        LOOPS[loop](model)
    LOOPS[loop](reference)
    assert strategy_of(model) is three
    assert devices_of(model) == set(three.devices)
    assert_same(state_of(model), state_of(reference))
    for each in (model, reference):
        LOOPS["fit"](each)
    assert_same(state_of(model), state_of(reference))
    assert not [warning for warning in recwarn if "scope" in str(warning.message)]


def test_a_loaded_model_joins_with_its_optimizer(three, tmp_path):
    reference = made(None, classifier)
    reference.fit(X, Y, batch_size=7, shuffle=False, verbose=0)
    reference.save(tmp_path / "model.keras")
    model = keras.saving.load_model(tmp_path / "model.keras")
    with three.scope():
        model.fit(X, Y, batch_size=7, epochs=2, shuffle=False, verbose=0)
    reference.fit(X, Y, batch_size=7, epochs=2, shuffle=False, verbose=0)
    assert_same(state_of(model), state_of(reference))
    assert {d for v in model.optimizer.variables for d in v.value.sharding.device_set} == set(three.devices)


def test_a_model_whose_variables_have_places_of_their_own_runs_without_the_strategy_and_says_so_once(three):
    distribution = keras.distribution.DataParallel(devices=["cpu:0", "cpu:1"])
    with distribution.scope():
        model = made(None, classifier)
    with three.scope():
        with pytest.warns(UserWarning, match=r"made outside of it.*Make \(or load\) the model inside the scope"):
            model.predict(X, verbose=0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model.predict(X, verbose=0)
    assert strategy_of(model) is None


def test_a_loop_inside_of_run_is_refused_for_what_it_is(three):
    model = made(three, classifier)
    with pytest.raises(ContextError, match=r"Model\.fit was called inside strategy\.run\."):
        three.run(lambda: model.fit(X, Y, verbose=0))


def test_predicting_builds_a_model_that_has_no_shape(three):
    model = made(three, Subclassed)
    expected = made(None, Subclassed).predict(X, batch_size=7, verbose=0)
    assert_same(model.predict(X, batch_size=7, verbose=0), expected)
    assert_same(made(three, Subclassed).predict_on_batch(X[:7]), expected[:7])


def test_models_of_several_strategies_train_in_turn(mirrored):
    strategies = [None, *(mirrored(count) for count in (1, 2, 8))]
    models = [made(strategy, classifier) for strategy in strategies]
    for seed in range(2):
        results = []
        for model in models:
            keras.utils.set_random_seed(seed)
            results.append(trained(model, X, Y, epochs=1))
        for result in results[1:]:
            assert_same(result, results[0])
    assert [len(devices_of(model)) for model in models] == [1, 1, 2, 8]


def test_a_model_inside_of_a_model_trains_with_the_outer_one(three):
    def make():
        inner = keras.Sequential([layers.Dense(4), layers.BatchNormalization()])
        return classifier(inner)

    expected = trained(made(None, make), X, Y)
    assert_same(trained(made(three, make), X, Y), expected)


def test_a_copied_model_has_the_same_strategy_and_weights_of_its_own(three):
    model = made(three, classifier)
    trained(model, X, Y, epochs=1)
    before = model.get_weights()
    duplicate = copy.deepcopy(model)
    assert_same(duplicate.get_weights(), before, tolerance=0)
    trained(duplicate, X, Y, epochs=1)
    assert_same(model.get_weights(), before, tolerance=0)
    assert strategy_of(duplicate) is three


def test_a_cloned_model_belongs_to_the_scope_in_which_it_is_cloned(three):
    model = made(three, KINDS["functional"])
    assert strategy_of(keras.models.clone_model(model)) is None
    with three.scope():
        assert strategy_of(keras.models.clone_model(model)) is three


# Strategies that do not fit together.


def test_an_optimizer_of_another_strategy_is_an_error(three, eight):
    model = made(three, classifier)
    with eight.scope():
        optimizer = keras.optimizers.Adam()
    model.compile(optimizer, "mse")
    with pytest.raises(StrategyMismatchError, match="iteration"):
        model.fit(X, Y, verbose=0)


def test_an_optimizer_that_was_built_for_another_strategy_is_an_error(three, eight):
    model, other = made(three, classifier), made(eight, classifier)
    other.fit(X, Y, verbose=0)
    model.compile(other.optimizer, "mse")
    with pytest.raises(StrategyMismatchError, match=r"SGD|sgd|iteration"):
        model.fit(X, Y, verbose=0)


def test_a_metric_of_another_strategy_is_an_error(three, eight):
    model = made(three, classifier)
    with eight.scope():
        metric = keras.metrics.MeanSquaredError()
    model.compile("sgd", "mse", metrics=[metric])
    with pytest.raises(StrategyMismatchError, match="mean_squared_error"):
        model.fit(X, Y, verbose=0)


def test_a_layer_of_another_strategy_is_an_error(three, eight):
    with eight.scope():
        layer = layers.Dense(CLASSES)
        layer.build((None, X.shape[1]))
    model = made(three, lambda: keras.Sequential([layer]))
    with pytest.raises(StrategyMismatchError, match="kernel"):
        model.predict(X, verbose=0)


@pytest.mark.parametrize("loop", ["fit", "evaluate", "predict", "train_on_batch", "predict_on_batch"])
def test_training_in_the_scope_of_another_strategy_is_an_error(three, eight, loop):
    model = made(three, classifier)
    data = (X,) if loop.startswith("predict") else (X, Y)
    with eight.scope(), pytest.raises(rx.errors.ContextError, match="MirroredStrategy"):
        getattr(model, loop)(*data)


def test_an_optimizer_made_outside_of_every_scope_is_taken(three):
    expected = trained(made(None, classifier), X, Y)
    model = made(three, classifier)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), model.loss, metrics=["accuracy"])
    assert_same(trained(model, X, Y), expected)


# The hooks.


def hooked_methods():
    """The methods of Keras's classes that are ours, by class and name."""
    trainer = next(base for base in keras.Model.__mro__ if base.__name__ == "JAXTrainer")
    return {
        (cls, name): method for cls in (trainer, keras.Model) for name, method in vars(cls).items() if is_ours(method)
    }


def is_ours(method):
    return inspect.isfunction(method) and "/replicax/" in method.__code__.co_filename


def test_the_hooks_are_installed_once(three, eight):
    with three.scope():
        before = hooked_methods()
    with eight.scope():
        after = hooked_methods()
    assert before == after
    assert {name for _, name in before} >= {"__init__", "fit", "make_train_function", "save"}
    for method in before.values():
        assert not is_ours(getattr(method, "__wrapped__", None))


@pytest.fixture(params=["with hooks", "without hooks"])
def keras_with_and_without_hooks(request, monkeypatch):
    install_trainer_hooks()
    if request.param == "without hooks":
        for (cls, name), method in hooked_methods().items():
            if hasattr(method, "__wrapped__"):
                monkeypatch.setattr(cls, name, method.__wrapped__)
            else:  # Keras has no such method
                monkeypatch.delattr(cls, name)
        assert hooked_methods() == {}


class Diary(keras.callbacks.Callback):
    """Notes every call of a callback's methods, in order."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __getattribute__(self, name):
        value = super().__getattribute__(name)
        if not name.startswith("on_"):
            return value

        def note(*args, logs=None):  # Of logs the names: their numbers are in the history.
            given = (*args, *([] if logs is None else [logs]))
            self.calls.append((name, *(tuple(each) if isinstance(each, dict) else each for each in given)))

        return note


def keras_behaviour(strategy=None):
    """What the documentation of Keras promises about its loops, as plain values."""
    model = made(strategy, lambda: classifier(layers.BatchNormalization(), layers.Dropout(0.2)))
    diary = Diary()
    history = model.fit(
        X, Y, batch_size=8, epochs=3, validation_data=(X[:5], Y[:5]), validation_freq=2, callbacks=[diary], verbose=0
    )
    return {
        "history": history.history,
        "epochs": history.epoch,
        "params": history.params,
        "same history": model.history is history,
        "evaluate list": model.evaluate(X, Y, verbose=0),
        "evaluate dict": model.evaluate(X, Y, verbose=0, return_dict=True, steps=1),
        "evaluate with callbacks": model.evaluate(X, Y, verbose=0, callbacks=[diary]),
        "predict": model.predict(X, batch_size=4, verbose=0, callbacks=[diary]),
        "train_on_batch": model.train_on_batch(X, Y),
        "test_on_batch": model.test_on_batch(X, Y, return_dict=True),
        "predict_on_batch": model.predict_on_batch(X),
        "metrics": model.get_metrics_result(),
        "iterations": int(model.optimizer.iterations),
        "state": state_of(model),
    }, diary.calls


@pytest.fixture(scope="module")
def keras_results():
    """Numbers and calls of the first to ask."""
    return {}


def check_keras_behaviour(known, results, calls):
    expected_results, expected_calls = known.setdefault("first", (results, calls))
    assert calls == expected_calls
    assert_same(results, expected_results)


def test_ordinary_models_behave_the_same_with_and_without_hooks(keras_with_and_without_hooks, keras_results):
    check_keras_behaviour(keras_results, *keras_behaviour())


def test_models_of_a_strategy_behave_like_ordinary_ones(three, keras_results):
    check_keras_behaviour(keras_results, *keras_behaviour(three))


def test_ordinary_models_raise_the_errors_of_keras(keras_with_and_without_hooks):
    model = made(None, classifier)
    with pytest.raises(ValueError, match="Arguments not recognized"):
        model.evaluate(X, Y, nonsense=1)
    with pytest.raises((ValueError, IndexError), match=r"must yield at least one batch|list index out of range"):
        model.fit(batch for batch in ())  # an IndexError before Keras 3.15
    with pytest.raises(ValueError, match="You must call `compile"):
        keras.Sequential([layers.Dense(1)]).fit(X, Y)
    with pytest.raises(ValueError, match="cannot be specified at the same time"):
        model.train_on_batch(X, LABELS, sample_weight=np.ones(len(X)), class_weight={0: 1.0})


def test_the_distribution_of_keras_itself_still_works_for_ordinary_models(keras_with_and_without_hooks):
    previous = keras.distribution.distribution()
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=["cpu:0", "cpu:1"]))
    try:
        model = made(None, classifier)
        assert len(devices_of(model)) == 2
        model.fit(X[:16], Y[:16], batch_size=8, verbose=0)
    finally:
        keras.distribution.set_distribution(previous)


def test_an_error_in_training_leaves_keras_as_it_was(three):
    before = keras.distribution.distribution()

    class Failing(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise RuntimeError("as planned")

    model = made(three, classifier)
    with pytest.raises(RuntimeError, match="as planned"):
        model.fit(X, Y, batch_size=7, callbacks=[Failing()], verbose=0)
    assert keras.distribution.distribution() is before
    assert int(model.optimizer.iterations.value) == 1
    assert np.isfinite(model.evaluate(X, Y, verbose=0, return_dict=True)["loss"])


def test_an_unknown_argument_is_an_error_with_the_name_of_the_loop(three):
    with pytest.raises(TypeError, match=r"Model\.fit\(\) got an unexpected keyword argument 'bogus'"):
        made(three, classifier).fit(X, Y, bogus=1)
