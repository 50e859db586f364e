"""A program is right for the settings of Keras's layers and optimizers with which it was traced."""

import keras
import numpy as np
import pytest

import replicax as rx

X = np.linspace(-1, 1, 32, dtype="float32").reshape(8, 4)


def two_steps(change, wraps):
    """Trains two steps in plain Python or compiled, with a change of a setting after the first; returns the weights."""
    keras.utils.set_random_seed(3)
    layers = [
        keras.layers.Dense(4, activation="tanh", name="first"),
        keras.layers.LayerNormalization(name="norm"),
        keras.layers.LeakyReLU(name="leaky"),
        keras.layers.Dense(1, name="last"),
    ]
    model = keras.Sequential([keras.Input((4,)), *layers])
    optimizer = keras.optimizers.AdamW(0.1, clipvalue=1.0, weight_decay=0.1)
    optimizer.build(model.trainable_variables)

    def step(x):
        trained = model.trainable_variables
        gradients = rx.grad(lambda: keras.ops.mean(model(x, training=True) ** 2), trained)()
        if len(trained) == len(optimizer._trainable_variables):
            optimizer.apply(gradients, trained)
        else:
            for variable, gradient in zip(trained, gradients, strict=True):
                variable.assign_sub(0.1 * gradient)

    compiled = wraps(step)
    for count in range(4):
        if count == 2:
            change(model, optimizer)
        compiled(X)
    return [np.asarray(each) for each in model.get_weights()]


CHANGES = {
    "trainable": lambda model, optimizer: setattr(model.get_layer("first"), "trainable", False),
    "one variable": lambda model, optimizer: setattr(model.get_layer("last").kernel, "trainable", False),
    "activation": lambda model, optimizer: setattr(model.get_layer("first"), "activation", keras.activations.relu),
    "slope": lambda model, optimizer: setattr(model.get_layer("leaky"), "negative_slope", 0.9),
    "epsilon": lambda model, optimizer: setattr(model.get_layer("norm"), "epsilon", 0.5),
    "clipvalue": lambda model, optimizer: setattr(optimizer, "clipvalue", 0.001),
    "weight_decay": lambda model, optimizer: setattr(optimizer, "weight_decay", 0.9),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_setting_that_changes_counts_from_then_on(name):
    plain = two_steps(CHANGES[name], lambda step: step)
    compiled = two_steps(CHANGES[name], rx.function)
    for one, other in zip(plain, compiled, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    unchanged = two_steps(lambda model, optimizer: None, lambda step: step)
    assert any(not np.allclose(one, other, rtol=1e-4) for one, other in zip(plain, unchanged, strict=True))


def traces_of(change):
    traced = []
    with rx.MirroredStrategy(["cpu:0", "cpu:1"]).scope() as strategy:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2), keras.layers.Dense(1)])

    def step(x):
        traced.append(1)
        return model(x)

    for _ in range(2):
        strategy.run(step, args=(X,))
    for _ in range(3):
        change(model)
        strategy.run(step, args=(X,))
    return len(traced)


def test_what_keras_notes_of_itself_makes_no_new_program():
    def nothing(model):
        model.layers[0].built = True
        model.layers[0].trainable = True
        model.stop_training = not getattr(model, "stop_training", False)
        keras.layers.Dense(3)

    assert traces_of(nothing) == traces_of(lambda model: None)


def test_a_setting_that_goes_back_and_forth_has_two_programs():
    def toggle(model):
        model.layers[0].use_bias = not model.layers[0].use_bias

    assert traces_of(toggle) == traces_of(lambda model: None) + 1


def test_fit_keeps_to_the_settings_with_which_the_model_was_compiled():
    with rx.MirroredStrategy(["cpu:0", "cpu:1"]).scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(X, X[:, :1], batch_size=8, verbose=0)
    before = model.get_weights()[0]
    model.layers[0].trainable = False
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(X, X[:, :1], batch_size=8, verbose=0)
    np.testing.assert_array_equal(model.get_weights()[0], before)
