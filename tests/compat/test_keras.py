from __future__ import annotations

import ast
import importlib

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from keras.src.trainers.epoch_iterator import EpochIterator

import replicax.compat.keras as keras_door
from tests.compat.guards import compat_file, needs
from tests.private_names import is_private_module, private_attributes

TREE = ast.parse(compat_file("keras").read_text())


@pytest.fixture(scope="module")
def model():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse", metrics=["mae"])
    return model


def objects(model):
    """Returns for each private attribute that compat asks for an object that must have it."""
    variable, optimizer = model.weights[0], keras.optimizers.SGD()
    optimizer.build(model.trainable_variables)
    trainer = [
        "_initial_epoch",
        "_assert_compile_called",
        "_should_eval",
        "_get_metrics_result_or_logs",
        "_flatten_metrics_in_order",
        "_symbolic_build",
        "_flatten_layers",
        "_purge_model_variables",
    ]
    norm, backup = keras.layers.BatchNormalization(), keras.callbacks.BackupAndRestore("unused")
    return dict.fromkeys(trainer, model) | {
        "_called": norm,
        "_moments": norm,
        "_reduction_axes": norm,
        "_compile_config": model,
        "_inputs_struct": keras.Model(model.inputs[0], model.outputs[0]),
        "_trainable_variables": optimizer,
        "_learning_rate": optimizer,
        "_iterations": optimizer,
        "_convert_to_tensor": variable,
        "_initializer": variable,
        "_initialize_layout": variable,
        "_direct_assign": variable,
        "_dtype": variable,
        "_is_default": keras.callbacks.Callback.on_epoch_end,
        "_save_model": backup,
        "_steps_seen": EpochIterator(np.zeros((2, 1)), shuffle=False),
        "_weights_path": backup,
        "_keras_call_info_injected": _failed_call(),
    }


def _failed_call():
    """Returns the error of a layer's call, which tells what it was given."""

    class Failing(keras.layers.Layer):
        def call(self, inputs):
            raise ValueError("never")

    with pytest.raises(ValueError, match="Arguments received") as raised:
        Failing()(np.zeros((1, 3), "float32"))
    return raised.value


ATTRIBUTES = sorted({use.name for use in private_attributes(TREE)})


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_keras_still_has(name, model):
    found = objects(model)[name]
    needs("keras", f"{type(found).__name__}.{name}", lambda: getattr(found, name))


def imported():
    for node in ast.walk(TREE):
        if isinstance(node, ast.ImportFrom) and is_private_module(f"{node.module}.x"):
            yield from (f"{node.module}:{alias.name}" for alias in node.names)


@pytest.mark.parametrize("name", sorted(imported()))
def test_keras_still_exports_inside(name):
    module, _, attribute = name.partition(":")
    needs("keras", name, lambda: getattr(importlib.import_module(module), attribute))


def test_what_is_used_is_guarded_and_nothing_else(model):
    assert sorted(objects(model)) == ATTRIBUTES
    assert "keras.src.trainers.data_adapters.data_adapter:DataAdapter" in set(imported())


@pytest.mark.parametrize(
    ("find", "methods"),
    [
        (keras_door.optimizer_class, ["apply", "stateless_apply"]),
        (keras_door.trainer_class, ["fit", "make_train_function", "make_test_function", "make_predict_function"]),
        (keras_door.variable_class, ["__init__", "assign"]),
        (keras_door.distribution_class, ["get_variable_layout", "get_data_layout", "get_tensor_layout"]),
        (keras_door.data_adapter_class, ["get_jax_iterator", "get_numpy_iterator", "num_batches"]),
    ],
)
def test_the_classes_without_exported_names_are_found(find, methods):
    found = needs("keras", find.__name__, find)
    for method in methods:
        needs("keras", f"{found.__name__}.{method}", lambda: getattr(found, method))  # noqa: B023


def test_all_optimizers_and_models_inherit_from_what_is_wrapped():
    assert issubclass(keras.optimizers.Adam, keras_door.optimizer_class())
    assert issubclass(keras.optimizers.LossScaleOptimizer, keras_door.optimizer_class())
    assert "apply" in vars(keras_door.optimizer_class())
    assert "fit" in vars(keras_door.trainer_class())
    assert issubclass(keras.Sequential, keras_door.trainer_class())


def test_a_layer_knows_that_it_is_called(model):
    seen = []

    class Asks(keras.Layer):
        def call(self, x):
            seen.append(keras_door.is_in_layer_call())
            return x

    Asks()(jnp.ones((1, 3)))
    assert seen == [True]
    assert not keras_door.is_in_layer_call()


def test_layers_are_listed_at_any_depth(model):
    outer = keras.Sequential([keras.Input((3,)), model])
    assert model.layers[0] in keras_door.sublayers(outer)
    assert outer not in keras_door.sublayers(outer)
    assert outer in keras_door.sublayers(outer, include_self=True)


def test_new_variables_get_their_values_within_a_stateless_scope():
    with keras.StatelessScope():
        variable = keras.Variable(keras.initializers.Ones(), shape=(2,))
        keras_door.set_initializer(variable, lambda shape, dtype: jnp.full(shape, 3.0, dtype))
        keras_door.initialize_new_variables()
    np.testing.assert_array_equal(variable.value, [3.0, 3.0])


def test_a_variable_is_assigned_whatever_scope_there_is():
    variable = keras.Variable([1.0, 2.0])
    with keras.StatelessScope():
        keras_door.assign_without_scopes(variable, [3.0, 4.0])
    np.testing.assert_array_equal(variable.value, [3.0, 4.0])


def test_a_variable_changes_its_class():
    variable = keras.Variable([1.0, 2.0])
    keras_door.change_class(variable, lambda own: type("Ours", (own,), {"__slots__": (), "ours": True}))
    assert variable.ours
    assert variable.__class__.__mro__[1] is keras.Variable
    assert "_value" in vars(variable), "What lives on servers takes the place of this attribute of the instance."


def test_fit_begins_where_a_callback_says(model):
    epochs = []

    class Begins(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            keras_door.set_initial_epoch(self.model, 2)

        def on_epoch_begin(self, epoch, logs=None):
            epochs.append(epoch)

    model.fit(np.ones((4, 3)), np.ones((4, 2)), epochs=4, verbose=0, callbacks=[Begins()])
    assert epochs == [2, 3]
    keras_door.set_initial_epoch(model, None)
    assert keras_door.initial_epoch(model) is None


def test_a_backup_is_stopped_from_writing(tmp_path):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    keras_door.stop_writing(backup)
    model.fit(np.ones((4, 3)), np.ones((4, 2)), verbose=0, callbacks=[backup])
    assert not list((tmp_path / "backup").glob("*.h5"))


def test_what_the_loops_ask_a_model(model):
    keras_door.check_compiled(model, "fit")
    with pytest.raises(ValueError, match="compile"):
        keras_door.check_compiled(keras.Sequential([keras.Input((3,))]), "fit")
    assert [keras_door.is_epoch_to_validate(model, epoch, 2) for epoch in range(4)] == [False, True, False, True]
    assert keras_door.is_epoch_to_validate(model, 2, [3])
    keras_door.build_for(model, (np.ones((4, 3)), np.ones((4, 2))))
    model.reset_metrics()
    assert keras_door.metrics_or_logs(model, {"own": 1.0}) is not None
    logs = model.evaluate(np.ones((4, 3)), np.ones((4, 2)), verbose=0, return_dict=True)
    assert keras_door.in_order_of_metrics(model, logs) == [logs["loss"], logs["mae"]]


@pytest.mark.parametrize("loop", ["fit", "predict"])
def test_a_generator_that_yields_nothing_is_known(model, loop):
    filtered = keras.config.is_traceback_filtering_enabled()
    keras.config.disable_traceback_filtering()  # The error is caught inside of the loop, where nothing is filtered yet.
    try:
        with pytest.raises((ValueError, IndexError)) as caught:
            getattr(model, loop)((batch for batch in ()), verbose=0)
    finally:
        if filtered:
            keras.config.enable_traceback_filtering()
    assert isinstance(caught.value, ValueError) or keras_door.is_of_empty_generator(caught.value)


def test_an_error_of_the_users_data_is_another_one(model):
    def data():
        yield [][1]

    with pytest.raises(IndexError) as caught:
        model.fit(data(), verbose=0)
    assert not keras_door.is_of_empty_generator(caught.value)


def test_arrays_are_split_and_made_one_batch():
    x, y = np.arange(12.0).reshape(4, 3), np.arange(4)
    assert keras_door.are_arrays((x, y, None))
    assert not keras_door.are_arrays((iter([x]), None, None))
    rows, labels, weights = keras_door.as_one_batch(x, y, None, {0: 1.0, 1: 2.0, 2: 1.0, 3: 1.0}, 4)
    np.testing.assert_array_equal(rows, x)
    np.testing.assert_array_equal(labels, y)
    np.testing.assert_array_equal(weights, [1.0, 2.0, 1.0, 1.0])
    (first, *_), (last, *_) = keras_door.split_for_validation((x, y, None), 0.25)
    np.testing.assert_array_equal(first, x[:3])
    np.testing.assert_array_equal(last, x[3:])


def test_logs_become_python_numbers():
    logs = keras_door.as_python_numbers({"loss": jnp.float32(0.5)})
    assert logs == {"loss": 0.5}
    assert type(logs["loss"]) is float
    assert isinstance(keras_door.as_tensor_of(keras.Variable(1.0), 2.0, "float32"), jax.Array)


def test_an_optimizer_knows_what_it_trains(model):
    optimizer = keras.optimizers.SGD()
    optimizer.build(model.trainable_variables)
    assert keras_door.trainable_variables_of(optimizer) == model.trainable_variables


def test_an_optimizer_has_lists_of_slots(model):
    optimizer = keras.optimizers.RMSprop(0.1, centered=True)
    optimizer.build(model.trainable_variables)
    slots = keras_door.slots_of(optimizer)
    assert set(slots) == {"velocities", "average_gradients"}
    shapes = [tuple(variable.shape) for variable in model.trainable_variables]
    assert all([tuple(each.shape) for each in found if each is not None] == shapes for found in slots.values())
    assert all(found[0].path.endswith(end) for found, end in zip(slots.values(), ("velocity", "gradient"), strict=True))


def test_the_layers_that_are_building_are_known():
    seen = []

    class Own(keras.layers.Layer):
        def build(self, shape):
            seen.append(keras_door.open_scopes())

    layer = Own()
    layer.build((1,))
    assert seen == [[layer]]
    assert keras_door.open_scopes() == []
