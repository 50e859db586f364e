"""Wrong arguments and model functions, and what a user can do wrong in the midst of a training."""

from __future__ import annotations

import functools
import json
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ArgumentError, BatchError, CheckpointError, EstimatorError, VariableError
from replicax.estimator import Estimator, EstimatorSpec, Hook, RunConfig
from tests.estimator.problems import X, Y, batches, estimator_of, jax_fn

QUIET = RunConfig(log_step_count_steps=None, save_summary_steps=None)


def spec_of(loss: Any, **given: Any) -> Any:
    """Returns a model function of one layer with this loss."""

    def model_fn(features, labels, mode):
        outputs = keras.layers.Dense(2)(features)
        return EstimatorSpec(mode, loss=loss(outputs, labels), **given)

    return model_fn


def fine_loss(outputs, labels):
    return keras.ops.mean((outputs - labels) ** 2)


OUTSIDE = keras.layers.Dense(2)
SGD = keras.optimizers.SGD(0.1)


def uses_a_layer_from_outside(features, labels, mode):
    assert OUTSIDE.built
    return EstimatorSpec(mode, loss=fine_loss(OUTSIDE(features), labels), optimizer=keras.optimizers.SGD(0.1))


def returns_another_mode(features, mode):
    return EstimatorSpec("eval", loss=jnp.mean(features))


def has_no_variables(features, labels, mode):
    return EstimatorSpec(mode, loss=jnp.mean(features), optimizer=keras.optimizers.SGD(0.1))


def depends_on_no_variable(features, labels, mode):
    keras.layers.Dense(2)(features)
    return has_no_variables(features, labels, mode)


def makes_a_shape_of_the_rows(features, labels, mode):
    w = rx.Variable(np.zeros(features.shape[0], np.float32), name="w")
    return EstimatorSpec(mode, loss=jnp.mean(w.value), optimizer=keras.optimizers.SGD(0.1))


def has_no_labels(features, mode):
    return has_no_variables(features, None, mode)


@pytest.mark.parametrize(
    ("model_fn", "error", "words"),
    [
        (lambda features, labels: None, EstimatorError, "EstimatorSpec, got None. It has no `return`"),
        (returns_another_mode, EstimatorError, "no argument `labels`"),
        (has_no_labels, EstimatorError, "no argument `labels`, but the input function returns labels"),
        (spec_of(lambda outputs, labels: None, optimizer=SGD), EstimatorError, "Missing loss: to train"),
        (spec_of(lambda outputs, labels: outputs, optimizer=SGD), EstimatorError, r"shape \(24, 2\)"),
        (spec_of(lambda outputs, labels: jnp.sum(outputs > 0), optimizer=SGD), EstimatorError, "dtype int32"),
        (spec_of(lambda outputs, labels: "small", optimizer=SGD), EstimatorError, "a scalar float, got 'small'"),
        (spec_of(fine_loss), EstimatorError, "Missing train_op: got neither"),
        (spec_of(fine_loss, train_op=print, optimizer=SGD), EstimatorError, "Got both"),
        (spec_of(fine_loss, train_op=3), EstimatorError, "`train_op` is a function"),
        (spec_of(fine_loss, train_op=lambda a, b: None), EstimatorError, r"takes \['a', 'b'\]"),
        (spec_of(fine_loss, optimizer="sgd"), EstimatorError, "`optimizer` is a Keras optimizer"),
        (spec_of(fine_loss, optimizer=SGD), EstimatorError, "has not made: sgd"),
        (spec_of(fine_loss, loss_reduction="max"), EstimatorError, "'mean' or 'sum', got 'max'"),
        (spec_of(fine_loss, eval_metric_ops=[1]), EstimatorError, "a dict of metrics by name"),
        (spec_of(fine_loss, eval_metric_ops={"loss": 1.0}), EstimatorError, "as the evaluation's own"),
        (spec_of(fine_loss, eval_metric_ops={"a": keras.metrics.Mean}), EstimatorError, "'a' is <class"),
        (spec_of(fine_loss, eval_metric_ops={"a": (1.0, 2.0)}), EstimatorError, "'a' is"),
        (spec_of(fine_loss, optimizer=SGD, training_hooks="hook"), EstimatorError, "a list of hooks"),
        (uses_a_layer_from_outside, EstimatorError, "dense.*/kernel.*neither saved nor restored"),
        (has_no_variables, EstimatorError, "makes no trainable variables"),
        (depends_on_no_variable, EstimatorError, "depends on none of the trainable variables"),
        (makes_a_shape_of_the_rows, VariableError, r"made with shape \(24,\), and is made again with \(17,\)"),
    ],
)
def test_a_model_function_that_returns_nonsense_is_told_so(tmp_path, model_fn, error, words):
    if not OUTSIDE.built:
        OUTSIDE.build((None, 4))
    estimator = Estimator(model_fn, tmp_path, QUIET)
    with pytest.raises(error, match=words):
        estimator.train(batches)
    assert estimator.latest_checkpoint() is None


def no_features(labels):
    pass


def unknown(features, rate):
    pass


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "`model_fn` or `keras_model`, and not both"),
        ({"model_fn": 3}, "`model_fn` is a function of"),
        ({"model_fn": no_features}, "must have an argument `features`"),
        ({"model_fn": unknown}, "an argument 'rate'. Hyperparameters are keys of `params`"),
        ({"model_fn": returns_another_mode, "params": {"a": 1}}, "no argument `params`"),
        ({"model_fn": jax_fn, "params": [1]}, "`params` is a dict"),
        ({"model_fn": jax_fn, "config": {}}, "RunConfig, got {}"),
        ({"model_fn": jax_fn, "model_dir": "here", "config": RunConfig(model_dir="there")}, "twice and differs"),
        ({"model_fn": jax_fn, "model_dir": 3}, "the path of a folder, got 3"),
        ({"model_fn": jax_fn, "warm_start_from": 3}, "`warm_start_from` is a path"),
        ({"keras_model": 3}, "a compiled keras.Model, got 3"),
        ({"keras_model": keras.Sequential([])}, "not compiled"),
    ],
)
def test_wrong_arguments_of_an_estimator(arguments, words):
    with pytest.raises((EstimatorError, ArgumentError), match=words):
        Estimator(**arguments)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Estimator:
    return estimator_of("jax", tmp_path_factory.mktemp("trained")).train(batches, steps=2)


CALLS = {
    "no function": (lambda e: e.train(3), EstimatorError, "`input_fn` is a function"),
    "unknown argument": (lambda e: e.train(lambda size: None), EstimatorError, "needs 'size'"),
    "no data": (lambda e: e.train(lambda: None), EstimatorError, "has returned None"),
    "empty": (lambda e: e.train(lambda: iter([])), BatchError, "no batch at all"),
    "triples": (lambda e: e.train(lambda: [(X, Y, Y)]), EstimatorError, "a tuple of 3"),
    "no end": (lambda e: e.train(lambda: (X, Y)), EstimatorError, "Give `steps`"),
    "both": (lambda e: e.train(batches, steps=1, max_steps=2), EstimatorError, "got 1 and 2"),
    "zero steps": (lambda e: e.train(batches, steps=0), ArgumentError, "`steps` must be an int of at least 1"),
    "negative": (lambda e: e.train(batches, max_steps=-1), ArgumentError, "`max_steps` must be an int"),
    "a bool": (lambda e: e.evaluate(batches, steps=True), ArgumentError, "`steps` must be an int"),
    "hook class": (lambda e: e.train(batches, hooks=[Hook]), EstimatorError, r"write Hook\(\)"),
    "no hook": (lambda e: e.evaluate(batches, hooks=[3]), EstimatorError, "or is a Keras callback; got 3"),
    "no hooks": (lambda e: e.train(batches, hooks="hooks"), EstimatorError, "`hooks` is a list"),
    "no listener": (lambda e: e.train(batches, saving_listeners=[3]), EstimatorError, "A saving listener"),
    "no checkpoint": (lambda e: e.evaluate(batches, checkpoint_path="/nowhere"), CheckpointError, "/nowhere"),
    "no variable": (lambda e: e.get_variable_value("x"), EstimatorError, "There are: b, c, global_step"),
    "no key": (lambda e: list(e.predict(batches, "z")), EstimatorError, r"are among .*, got \['z'\]"),
    "no shape": (lambda e: e.export("exports", None), EstimatorError, "`serving_input`"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_call_is_refused_and_changes_nothing(trained, name):
    call, error, words = CALLS[name]
    before = trained.latest_checkpoint()
    with pytest.raises(error, match=words):
        call(trained)
    assert trained.latest_checkpoint() == before


@pytest.mark.parametrize("call", ["evaluate", "predict", "export", "get_variable_names", "get_variable_value"])
def test_what_was_never_trained_has_no_values(tmp_path, call):
    arguments = {"export": ("exports", X), "get_variable_names": (), "get_variable_value": ("w",)}
    with pytest.raises(EstimatorError, match="has not been trained"):
        getattr(estimator_of("jax", tmp_path), call)(*arguments.get(call, (batches,)))


def test_the_steps_of_several_calls_add_up_and_max_steps_counts_them_all(trained, tmp_path):
    estimator = estimator_of("jax", tmp_path)
    once = functools.partial(estimator.train, lambda: (X[:8], Y[:8]))
    assert estimator.get_variable_value("global_step") == 3 if once(steps=3) else False
    once(steps=2)
    assert once(max_steps=4).get_variable_value("global_step") == 5  # It is there already.
    assert once(max_steps=7).get_variable_value("global_step") == 7
    assert estimator.params == {"rate": 0.05}
    assert "w" in estimator.get_variable_names()


class Failing(Hook):
    def __init__(self, error: type[BaseException]):
        self.error, self.ended = error, False

    def after_step(self, context):
        if context.step == 3:
            raise self.error("stop")

    def end(self, context):
        self.ended = True


@pytest.mark.nightly
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_after_an_error_in_a_step_the_last_checkpoint_is_whole_and_training_goes_on_from_it(alone, tmp_path, error):
    estimator = estimator_of("jax", tmp_path, save_checkpoints_steps=1)
    hook = Failing(error)
    with pytest.raises(error, match="stop"):
        estimator.train(batches, hooks=[hook])
    assert not hook.ended
    assert estimator.get_variable_value("global_step") == 2
    estimator.train(lambda: iter(list(batches())[2:]))
    np.testing.assert_allclose(estimator.get_variable_value("w"), alone["jax"].weights[5][0], rtol=1e-6, atol=1e-6)


def test_an_input_function_that_raises_in_the_midst_of_an_epoch_raises_here(tmp_path):
    def breaks():
        yield from list(batches())[:2]
        raise OSError("the disk is gone")

    estimator = estimator_of("jax", tmp_path, save_checkpoints_steps=1)
    with pytest.raises(OSError, match="the disk is gone"):
        estimator.train(breaks)
    assert estimator.get_variable_value("global_step") in (1, 2)


def test_features_may_be_nested_and_labels_absent(tmp_path):
    def model_fn(features, mode):
        inner = keras.layers.Dense(2, name="inner")(features["a"]["b"]) + keras.layers.Dense(2)(features["c"][0])
        if mode == "infer":
            return EstimatorSpec(mode, predictions=inner)
        return EstimatorSpec(mode, loss=keras.ops.mean(inner**2), optimizer=keras.optimizers.SGD(0.1))

    features = {"a": {"b": X[:8]}, "c": [X[8:16]]}
    estimator = Estimator(model_fn, tmp_path, QUIET).train(lambda: [features] * 3)
    assert {"inner/kernel", "dense/kernel"} < set(estimator.get_variable_names())
    whole = next(estimator.predict(lambda: features, yield_single_examples=False))
    assert np.shape(whole) == (8, 2)
    spec = {"a": {"b": rx.TensorSpec([None, 4])}, "c": [rx.TensorSpec([None, 4])]}
    exported = rx.load_export(estimator.export_saved_model(tmp_path / "exports", lambda: spec))
    np.testing.assert_allclose(exported(features), whole, rtol=1e-6)
    assert exported({"a": {"b": X[:3]}, "c": [X[:3]]}).shape == (3, 2)


def test_two_estimators_in_one_process_do_not_meet(trained, tmp_path):
    before = trained.get_variable_value("w")
    evaluated: list[float] = []

    class EvaluateAnother(Hook):
        def after_step(self, context):
            evaluated.append(trained.evaluate(batches)["loss"])

    other = estimator_of("keras", tmp_path, rx.MirroredStrategy(["cpu:0", "cpu:1"]))
    other.train(lambda: (X[:8], Y[:8]), steps=2, hooks=[EvaluateAnother()])
    assert evaluated == pytest.approx([trained.evaluate(batches)["loss"]] * 2, rel=1e-6)
    np.testing.assert_array_equal(trained.get_variable_value("w"), before)


def test_an_evaluator_does_not_train(tmp_path, monkeypatch):
    cluster = {"cluster": {"chief": ["127.0.0.1:1"]}, "task": {"type": "evaluator", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    with pytest.raises(EstimatorError, match="whose role is 'evaluator': it does not train"):
        Estimator(jax_fn, tmp_path, RunConfig(), {"rate": 0.1}).train(batches)
