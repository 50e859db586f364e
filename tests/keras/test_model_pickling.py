"""A model made again from what travels to another process is the same model."""

from __future__ import annotations

import pickle

import jax
import keras
import numpy as np
import pytest
import ray.cloudpickle as cloudpickle

from replicax.errors import ArgumentError, VariableError
from replicax.keras.model_pickling import ModelParcel, ModelState, like_a_row
from replicax.keras.random_state import RandomState

X = np.random.default_rng(0).normal(size=(12, 3)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def squared(y, p):
    return keras.ops.mean((y - p) ** 2)


def positive(x):
    return keras.ops.maximum(x, 0)


class Scaled(keras.layers.Layer):
    """A layer that no other process can import."""

    def __init__(self, by=2.0, **kwargs):
        super().__init__(**kwargs)
        self.by = by

    def call(self, x):
        return x * self.by

    def get_config(self):
        return {**super().get_config(), "by": self.by}


class Decay(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return 0.1 / (1.0 + keras.ops.cast(step, "float32"))

    def get_config(self):
        return {}


def make() -> keras.Model:
    inputs = keras.Input((3,))
    x = keras.layers.Dense(4, activation=positive)(inputs)
    x = keras.layers.Dropout(0.5)(Scaled(3.0)(x))
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.BatchNormalization()(x)))
    model.compile(keras.optimizers.Adam(Decay()), squared, metrics=["mae", squared])
    return model


def travelled(parcel: ModelParcel) -> ModelParcel:
    return cloudpickle.loads(cloudpickle.dumps(parcel))


@pytest.mark.parametrize("rounds", [0, 1])
def test_training_goes_on_exactly(rounds: int):
    keras.utils.set_random_seed(1)
    model = make()
    for _ in range(rounds):
        model.fit(X, Y, batch_size=4, verbose=0)
    parcel = travelled(ModelParcel.of(model, like_a_row((X, Y)) if rounds else None))
    before = RandomState.here()
    expected = model.fit(X, Y, batch_size=4, epochs=2, verbose=0).history
    copy = parcel.opened()
    before.set()
    assert copy.fit(X, Y, batch_size=4, epochs=2, verbose=0).history == expected
    jax.tree.map(np.testing.assert_array_equal, ModelState.of(copy), ModelState.of(model))
    assert copy.layers[2].by == 3.0


class Shift(keras.layers.Layer):
    """A layer whose configuration says nothing of whether it is trained."""

    def build(self, shape):
        self.by = self.add_weight(shape=(shape[-1],))

    def call(self, x):
        return x + self.by

    def get_config(self):
        return {"name": self.name}


def test_frozen_layers_stay_frozen():
    model = keras.Sequential([keras.Input((3,)), Shift(), keras.layers.Dense(4), keras.layers.Dense(1)])
    model.layers[0].trainable = model.layers[1].trainable = False
    model.compile("sgd", "mse")
    copy = travelled(ModelParcel.of(model, None)).opened()
    assert [layer.trainable for layer in copy.layers] == [False, False, True]
    assert len(copy.trainable_variables) == 2


def test_a_state_does_not_fit_another_model():
    model, other = make(), keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    before = [np.asarray(variable) for variable in other.variables]
    with pytest.raises(VariableError, match=r"has 2 variables here .* and 9 on the workers"):
        ModelState.of(model).put_in(other)
    for variable, value in zip(other.variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)


def test_a_model_that_keras_cannot_make_again():
    class Closed(keras.layers.Layer):
        def get_config(self):
            raise NotImplementedError("not this one")

    model = keras.Sequential([keras.Input((2,)), Closed()], name="closed")
    with pytest.raises(ArgumentError, match=r"'closed' cannot be sent to the workers: not this one.*get_config"):
        ModelParcel.of(model)


class Forgetful(keras.layers.Layer):
    """A layer whose configuration lacks an argument."""

    def __init__(self, by, **kwargs):
        super().__init__(**kwargs)

    def call(self, x):
        return x

    def get_config(self):
        return super().get_config()


def test_a_model_that_arrives_and_cannot_be_made():
    model = keras.Sequential([keras.Input((2,)), Forgetful(2)], name="lost")
    with pytest.raises(ArgumentError, match=r"(?s)'lost' cannot be made again on the workers: .*Forgetful"):
        ModelParcel.of(model).opened()


def test_random_numbers_go_on():
    keras.utils.set_random_seed(5)
    keras.random.uniform((1,))
    state = pickle.loads(pickle.dumps(RandomState.here()))
    expected = np.random.rand(), np.asarray(keras.random.uniform((2,)))
    keras.utils.set_random_seed(6)
    state.set()
    assert np.random.rand() == expected[0]
    np.testing.assert_array_equal(keras.random.uniform((2,)), expected[1])
