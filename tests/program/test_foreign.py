"""TensorFlow and PyTorch are not installed here: modules of these names stand for them, and do what they do."""

from __future__ import annotations

import sys
import types
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ArgumentError, ContextError, ProgramError

CODE = """
import numpy as np

class Tensor:
    def __init__(self, value):
        self.value = value
    shape, dtype = (), "float32"
    def __repr__(self):
        return "<Tensor>"

class Function:
    def __init__(self, fn):
        self.fn = fn
    def __call__(self, *args):
        return self.fn(*map(convert, args))

class Dataset:
    def __iter__(self):
        return iter([1.0])

def convert(x):
    return Tensor(np.asarray(x))

class GradientTape:
    def __enter__(self):
        return self
    def __exit__(self, *args):
        pass
    def gradient(self, loss, variables):
        return loss._id

def module_call(x):
    raise TypeError("linear(): argument 'input' must be Tensor")
"""


def library(name: str) -> Any:
    module = types.ModuleType(name)
    exec(compile(CODE, f"/site-packages/{name}.py", "exec"), vars(module))
    return module


tf, torch = library("tensorflow.python.ops"), library("torch.nn.functional")


def sums_with_tensorflow(x):
    return tf.convert(x)


def tapes(x):
    with tf.GradientTape() as tape:
        loss = jnp.sum(x)
    return tape.gradient(loss, [])


def gives_to_jax(x):
    return x + jnp.sum(tf.Tensor(np.ones(3)))


def calls_torch(x):
    return torch.module_call(x)


def calls_torch_in_c(x):
    raise TypeError("sum(): argument 'input' (position 1) must be Tensor, not DynamicJaxprTracer")


@pytest.fixture
def strategy():
    return rx.MirroredStrategy(2)


@pytest.mark.parametrize("eagerly", [False, True])
@pytest.mark.parametrize(
    ("step", "name", "line"),
    [
        (sums_with_tensorflow, "TensorFlow was called", "return tf.convert(x)"),
        (tapes, "TensorFlow was called", "return tape.gradient(loss, [])"),
        (gives_to_jax, "TensorFlow was used", "return x + jnp.sum(tf.Tensor(np.ones(3)))"),
        (calls_torch, "PyTorch was called", "return torch.module_call(x)"),
        (calls_torch_in_c, "PyTorch was used", "raise TypeError"),
    ],
)
def test_a_step_that_calls_another_library_is_told_so_with_its_line(strategy, step, name, line, eagerly):
    batch = next(iter(strategy.distribute_dataset(np.ones(4, "float32"), batch_size=4)))
    rx.config.run_eagerly(eagerly)
    try:
        with pytest.raises(ProgramError) as caught:
            strategy.run(step, args=(batch,))
    finally:
        rx.config.run_eagerly(False)
    said = str(caught.value)
    assert said.startswith(f"{name} in a step, at {__file__}:")
    assert line in said
    assert "jax.numpy" in said
    assert "rx.value_and_grad" in said
    assert all("site-packages/tensorflow" not in str(entry.path) for entry in caught.traceback)


def test_the_same_in_a_compiled_function():
    with pytest.raises(ProgramError, match=r"TensorFlow was called in a step.*\(return tf.convert\(x\)\)"):
        rx.function(sums_with_tensorflow)(jnp.ones(3))


@pytest.mark.parametrize("wrap", [rx.function, lambda fn: rx.MirroredStrategy(2).run(fn, args=(1.0,))])
def test_a_tf_function_is_not_taken_for_a_step(wrap):
    with pytest.raises(ArgumentError, match=r"is an object of TensorFlow.*JAX cannot see.*rx.function for tf.function"):
        wrap(tf.Function(lambda x: x))


def test_a_tf_function_is_not_taken_for_a_loss():
    with pytest.raises(ArgumentError, match="The loss function is an object of TensorFlow"):
        rx.value_and_grad(tf.Function(lambda: 1.0), [rx.Variable(1.0)])


@pytest.mark.parametrize(("module", "name"), [(tf, "TensorFlow"), (torch, "PyTorch")])
def test_tensors_are_neither_passed_nor_returned(strategy, module, name):
    tensor = module.Tensor(1.0)
    for call in (lambda: strategy.run(lambda x: 1, args=(tensor,)), lambda: rx.function(lambda x: 1)({"a": [tensor]})):
        with pytest.raises(ArgumentError, match=rf"A tensor of {name} was passed \(<Tensor>\).*np.asarray\(x\)"):
            call()
    for call in (lambda: strategy.run(lambda: tensor), rx.function(lambda: {"a": tensor})):
        with pytest.raises(ArgumentError, match=rf"A tensor of {name} was returned \(<Tensor>\).*while .* was traced"):
            call()


def test_a_loss_is_no_tensor():
    with pytest.raises(ArgumentError, match="A tensor of TensorFlow was returned"):
        rx.value_and_grad(lambda: tf.Tensor(1.0), [rx.Variable(1.0)])()


def test_what_is_no_tensor_may_be_passed(strategy):
    assert strategy.run(lambda dataset: next(iter(dataset)), args=(tf.Dataset(),)) == 1.0


def test_errors_of_the_user_and_of_keras_stay_what_they_are(strategy):
    def fails(x):
        raise KeyError("mine")

    def wrong_shape(x):
        return keras.layers.Dense(2).build((None, 3)) or jnp.ones((2, 3)) @ jnp.ones((2, 3))

    with pytest.raises(KeyError, match="mine"):
        strategy.run(fails, args=(1.0,))
    with pytest.raises(TypeError, match="contracting dimensions"):
        strategy.run(wrong_shape, args=(1.0,))


@pytest.mark.parametrize("eager", [True, False])
def test_a_step_is_not_run_while_tensorflow_traces(strategy, eager, monkeypatch):
    module = types.ModuleType("tensorflow")
    module.executing_eagerly = lambda: eager
    monkeypatch.setitem(sys.modules, "tensorflow", module)
    if eager:
        assert strategy.run(lambda: 1) == 1
    else:
        with pytest.raises(ContextError, match=r"while TensorFlow traces a tf.function.*@rx.function there"):
            strategy.run(lambda: 1)
