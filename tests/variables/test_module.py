"""`rx.Module` finds the variables of objects."""

import jax.numpy as jnp
import keras
import numpy as np

import replicax as rx


class Dense(rx.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = rx.Variable(np.zeros((size, size)), name="weight")
        self.bias = rx.Variable(np.zeros(size), name="bias")


class TwoLayers(rx.Module):
    def __init__(self):
        super().__init__(name="net")
        self.layers = [Dense(2), Dense(3)]
        self.again = self.layers[0]
        self.extra = {"steps": rx.Variable(0, trainable=False, name="steps")}
        self.activation = keras.ops.relu


def test_variables_come_by_the_names_of_attributes_and_none_twice():
    net = TwoLayers()
    names = ["steps", "bias", "weight", "bias", "weight"]
    assert [each.name.split(":")[0] for each in net.variables] == names
    assert [each.shape for each in net.trainable_variables] == [(2,), (2, 2), (3,), (3, 3)]
    assert [each.name for each in net.non_trainable_variables] == [net.extra["steps"].name]
    assert net.submodules == (net.layers[0], net.layers[1])


def test_a_variable_under_two_names_is_one():
    net = Dense(2)
    net.tied, net.all = net.weight, [net.weight, net.bias]
    assert len(net.variables) == 2
    layer = keras.layers.Dense(2)
    layer.build((None, 3))
    net.layer, net.kernel = layer, layer.kernel
    assert len(net.variables) == 4


def test_names():
    assert (TwoLayers().name, Dense(1).name) == ("net", "dense")
    assert type("MLPStricter", (rx.Module,), {})().name == "mlpstricter"


def test_a_keras_layer_counts_with_its_variables():
    class Net(rx.Module):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(2)
            self.dense.build((None, 3))

    assert [each.shape for each in Net().trainable_variables] == [(3, 2), (2,)]


def test_gradients_and_a_checkpoint_of_a_module(tmp_path):
    net = Dense(2)
    loss, gradients = rx.value_and_grad(
        lambda: jnp.sum(net.weight * net.weight) + jnp.sum(1 * net.bias), net.variables
    )()
    assert float(loss) == 0.0
    assert [gradient.shape for gradient in gradients] == [(2,), (2, 2)]
    net.bias.assign(np.ones(2))
    path = rx.Checkpoint(root=net).save(tmp_path / "net")
    other = Dense(2)
    rx.Checkpoint(root=other).restore(path)
    np.testing.assert_array_equal(other.bias, np.ones(2))
