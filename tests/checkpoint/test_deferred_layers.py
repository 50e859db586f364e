"""Values that wait for layers inside of other objects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import replicax as rx
from replicax.errors import CheckpointError, UnmatchedError
from tests.checkpoint.models import X


def test_a_layer_among_the_attributes_of_a_plain_object_waits_too(tmp_path: Path):
    class Net:
        def __init__(self) -> None:
            self.dense, self.scale = keras.layers.Dense(3), rx.Variable(1.0)

    net = Net()
    net.dense.build((None, 2))
    path = rx.Checkpoint(net=net).write(tmp_path / "net")
    again = Net()
    status = rx.Checkpoint(net=again).restore(path)
    again.dense(np.ones((1, 2), "float32"))
    status.assert_consumed()
    np.testing.assert_array_equal(again.dense.kernel, net.dense.kernel)


def test_a_model_built_behind_its_back_is_not_taken_for_restored(tmp_path: Path):
    """Keras builds a model that it cannot trace by calling it: no `build`."""

    class Untraceable(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(2)

        def call(self, x: Any) -> Any:
            return self.dense(x) * float(np.asarray(x).sum() > -np.inf)

    x = np.ones((1, 3), "float32")
    model = Untraceable()
    model(x)
    path = rx.Checkpoint(model=model).write(tmp_path / "c")
    again = Untraceable()
    checkpoint = rx.Checkpoint(model=again)
    status = checkpoint.restore(path)
    again(x)
    with pytest.raises(UnmatchedError):
        status.assert_consumed()
    with pytest.raises(CheckpointError, match="without `build`"):
        checkpoint.write(tmp_path / "d")
    checkpoint.restore(path).assert_consumed()
    np.testing.assert_array_equal(again.dense.kernel, model.dense.kernel)


def test_a_model_of_which_only_the_parts_are_called_is_not_taken_for_restored(tmp_path: Path):
    class Pair(keras.Model):
        """As a GAN: its own `call` is never used."""

        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = keras.layers.Dense(3), keras.layers.Dense(1)

    def used() -> Any:
        pair = Pair()
        pair.two(pair.one(X))
        return pair

    old = used()
    path = rx.Checkpoint(pair=old).write(tmp_path / "c")
    pair = Pair()
    checkpoint = rx.Checkpoint(pair=pair)
    status = checkpoint.restore(path)
    pair.one(X)
    with pytest.raises(CheckpointError, match="without `build`"):
        checkpoint.write(tmp_path / "half")
    pair.two(pair.one(X))
    with pytest.raises(CheckpointError, match="without `build`"):
        checkpoint.write(tmp_path / "whole")
    with pytest.raises(UnmatchedError, match="'pair' "):
        status.assert_consumed()
    checkpoint.restore(path).assert_consumed()
    for found, expected in zip(pair.variables, old.variables, strict=True):
        np.testing.assert_array_equal(found, expected)
    checkpoint.write(tmp_path / "whole")


class Lazy(keras.layers.Layer):
    """Its `build` makes a layer, and leaves it to its first call."""

    def build(self, shape: Any) -> None:
        self.kernel, self.inner = self.add_weight(shape=(shape[-1], 2)), keras.layers.Dense(3, name="inner")
        self.shift = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x: Any) -> Any:
        return self.inner(x @ self.kernel) + self.shift


@pytest.mark.parametrize("how", ["eager", "run", "function", "loss"])
def test_a_layer_that_leaves_its_layers_to_their_first_call_has_its_values_there(tmp_path: Path, how: str):
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    old = Lazy()
    old.build((None, 4))
    old(X)
    old.shift.assign(2.0)
    path = rx.Checkpoint(layer=old).write(tmp_path / "c")
    with strategy.scope():
        layer = Lazy()
    status = rx.Checkpoint(layer=layer).restore(path)
    [batch] = strategy.distribute_dataset([X])
    if how == "eager":
        found = layer(X)
    elif how == "run":
        found = strategy.gather(strategy.run(lambda x: layer(x), args=(batch,)), axis=0)
    elif how == "function":
        found = rx.function(lambda x: layer(x))(X)
    else:
        weight = keras.Variable(np.float32(1))
        rx.function(lambda x: rx.value_and_grad(lambda: keras.ops.mean(layer(x) * weight), [weight])())(X)
        found = layer(X)
    np.testing.assert_allclose(found, old(X), rtol=1e-5, atol=1e-6)
    status.assert_consumed()


class Plain(keras.Model):
    """It leaves `build` to Keras, which marks it as built and builds nothing inside."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.dense = keras.layers.Dropout(0.5), keras.layers.Dense(3)

    def call(self, x: Any, training: bool = False) -> Any:
        return self.dense(self.drop(x, training=training))


@pytest.mark.filterwarnings("ignore:`build:UserWarning")
def test_a_model_that_keras_says_is_built_waits_while_its_layers_are_not(tmp_path: Path):
    old, model = Plain(), Plain()
    expected = old(X)
    path = rx.Checkpoint(model=old).write(tmp_path / "c")
    model.build((None, 4))
    checkpoint = rx.Checkpoint(model=model)
    with pytest.raises(CheckpointError, match=r"'model' \(Plain\) is not built.*call it once on a batch"):
        checkpoint.write(tmp_path / "half")
    status = checkpoint.restore(path)
    assert checkpoint.write(tmp_path / "d").exists()  # the values that wait
    np.testing.assert_array_equal(model(X), expected)
    status.assert_consumed()
    outer = keras.Sequential([model])  # A layer around it that is built by hand, and by no call.
    unused = Plain()
    unused.aside = keras.layers.Dense(1)
    unused(X)
    for each in (outer, unused):  # What a call has left unbuilt is not used.
        each.build((None, 4))
        rx.Checkpoint(model=each).write(tmp_path / each.name)


def test_layers_that_a_build_of_ones_own_has_left_are_named_before_a_partial_restore(tmp_path: Path):
    old, layer = Lazy(), Lazy()
    old(X)
    path = rx.Checkpoint(layer=old).write(tmp_path / "c")
    layer.build((None, 4))
    with pytest.raises(
        CheckpointError, match=r"'layer' lacks variables. .* \['inner'\] unbuilt: .*call it once.*partial"
    ):
        rx.Checkpoint(layer=layer).restore(path)


def test_layers_that_cannot_be_built_before_the_call_are_named(tmp_path: Path):
    class Two(Lazy):
        def build(self, x_shape: Any, y_shape: Any) -> None:
            super().build(x_shape)

        def call(self, x: Any, y: Any) -> Any:
            return super().call(x + y)

    old = Two()
    expected = old(X, X)
    path = rx.Checkpoint(layer=old).write(tmp_path / "c")
    layer = Two()
    rx.Checkpoint(layer=layer).restore(path)
    with pytest.raises(
        CheckpointError, match=r"leaves its layers \['inner'\] unbuilt: build them there, or call it once"
    ):
        layer(X, X)

    class Untraceable(Lazy):
        def call(self, x: Any) -> Any:
            return super().call(x) * float(np.asarray(x).sum() > -np.inf)

    untraceable = Untraceable()
    rx.Checkpoint(layer=untraceable).restore(path)
    for _ in range(2):
        with pytest.raises(
            CheckpointError, match=r"(?s)cannot be built before its first call.* its layers \['inner'\] "
        ):
            untraceable(X)
    called = Two()
    called(X, X)
    rx.Checkpoint(layer=called).restore(path)
    np.testing.assert_array_equal(called(X, X), expected)


def test_without_a_path_nothing_is_restored(trained: Any):
    model, *_ = trained
    status = rx.Checkpoint(model=model).restore(None)
    assert status == {}
    with pytest.raises(UnmatchedError, match="path was None"):
        status.assert_consumed()
    with pytest.raises(AssertionError):  # what TensorFlow raises
        status.assert_nontrivial_match()


def test_a_partial_restore_tells_what_it_left_out(trained: Any):
    model, _, path = trained
    status = rx.Checkpoint(model=model, extra=rx.Variable(1.0)).restore(path, partial=True)
    with pytest.raises(UnmatchedError, match=r"Only in the checkpoint: \['optimizer/0'.*objects: \['extra'\]"):
        status.assert_consumed()
    with pytest.raises(UnmatchedError, match=r"has nothing for \['extra'\]"):
        status.assert_existing_objects_matched()
    status.assert_nontrivial_match()
    with pytest.raises(UnmatchedError, match="Nothing in the checkpoint"):
        rx.Checkpoint(other=rx.Variable(1.0)).restore(path, partial=True).assert_nontrivial_match()
