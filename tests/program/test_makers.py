"""Who makes a variable of Keras."""

import copy
import gc
import pickle

import keras
import numpy as np
import pytest

import replicax as rx
from replicax.program.keras.makers import makers_of


class Holder(keras.layers.Layer):
    """A layer that builds another one."""

    def __init__(self):
        super().__init__()
        self.inner = keras.layers.Dense(3)

    def build(self, shape):
        self.inner.build(shape)


@pytest.fixture
def holder():
    with rx.MirroredStrategy(["cpu:0"]).scope():
        holder = Holder()
        holder.build((1, 2))
    return holder


def test_the_innermost_layer_comes_first(holder):
    assert makers_of(holder.inner.kernel) == [holder.inner, holder]
    assert makers_of(keras.Variable(1.0)) == makers_of(rx.Variable(1.0)) == []


def test_an_optimizer_makes_its_state(holder):
    optimizer = keras.optimizers.Adam()
    optimizer.build(holder.trainable_variables)
    assert all(makers_of(variable) == [optimizer] for variable in optimizer.variables)


def test_a_variable_made_in_a_stateless_scope_knows_them_when_it_gets_its_value():
    with keras.StatelessScope():
        holder = Holder()
        holder.build((1, 2))
    assert makers_of(holder.inner.bias) == [holder.inner, holder]


def test_variables_can_be_copied_and_sent_elsewhere():
    layer = keras.layers.Dense(3)  # In no strategy's scope.
    layer.build((1, 2))
    sent = pickle.loads(pickle.dumps(layer.kernel))
    np.testing.assert_array_equal(sent, layer.kernel)
    assert makers_of(sent) == []
    assert makers_of(copy.deepcopy(layer.kernel)) == [layer]


def test_layers_that_are_gone_are_left_out(holder):
    kernel = holder.inner.kernel
    inner = holder.inner
    assert len(makers_of(kernel)) == 2
    del holder
    gc.collect()
    assert makers_of(kernel)[0] is inner
