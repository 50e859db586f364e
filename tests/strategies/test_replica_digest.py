"""Copies of variables that have drifted from the others'."""

from __future__ import annotations

import re

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ArgumentError, ReplicaDriftError
from tests.strategies.flipping import flip

DTYPES = ["float32", "bfloat16", "float16", "int32", "uint8", "complex64", "int8"]


def variables(strategy, *dtypes):
    with strategy.scope():
        return [rx.Variable(jnp.arange(12).reshape(3, 4).astype(each), name=each, trainable=False) for each in dtypes]


def test_equal_copies_are_equal(mirrored):
    strategy = mirrored(8)
    own = variables(strategy, *DTYPES, "bool")
    strategy.check_replicas(own)
    strategy.check_replicas([])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_flipped_bit_is_found_and_its_replica_named(mirrored, dtype):
    strategy = mirrored(8)
    own = variables(strategy, "float32", dtype)
    flip(own[1], 5, np.dtype(own[1].dtype).itemsize * 8 * 7 + 3)
    with pytest.raises(ReplicaDriftError, match="After step 7: The copies of replica 5") as found:
        strategy.check_replicas(own, step=7)
    assert (found.value.variables, found.value.replicas, found.value.is_sure) == ((dtype,), (5,), True)


def test_of_two_copies_nobody_knows_which_is_right(two):
    (own,) = variables(two, "float32")
    flip(own, 1, 0)
    with pytest.raises(ReplicaDriftError, match="no majority") as found:
        two.check_replicas([own])
    assert (found.value.replicas, found.value.is_sure) == ((0, 1), False)


def test_arrays_and_variables_in_any_pytree(mirrored):
    strategy = mirrored(4)
    first, second = variables(strategy, "float32", "int32")
    strategy.check_replicas(first)
    strategy.check_replicas(each for each in (first, second))
    strategy.check_replicas(strategy.replicate(np.ones(3)))
    flip(second, 1, 0)
    with pytest.raises(ReplicaDriftError, match="int32"):
        strategy.check_replicas({"a": first, "b": (second, strategy.replicate(np.ones(3)))})


@pytest.mark.parametrize("given", [None, np.ones(3), [np.ones(3)], {"w": [1.0]}, "kernel", 3, [jnp.ones(2), "x"]])
def test_what_has_no_copies(two, given):
    with pytest.raises(ArgumentError, match=r"`variables`.* is no variable, and no array .* got"):
        two.check_replicas(given)


def test_a_part_is_compared_with_the_copies_of_that_part():
    strategy = rx.LayoutStrategy(layout={".*": (None, "model")}, mesh_shape={"data": 4, "model": 2})
    (own,) = variables(strategy, "float32")
    strategy.check_replicas([own])
    flip(own, 5, 40)
    with pytest.raises(ReplicaDriftError) as found:
        strategy.check_replicas([own])
    assert found.value.replicas == (5,)


def test_parts_without_a_copy_have_nothing_to_compare_with():
    strategy = rx.FullyShardedStrategy()
    with strategy.scope():
        own = rx.Variable(jnp.ones((64, 64)))
    strategy.check_replicas([own])


def test_fit_ends_with_the_replica_that_has_drifted(mirrored):
    keras = pytest.importorskip("keras")
    strategy = mirrored(4)
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile("adam", "mse")

    class Flips(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                flip(self.model.layers[0].kernel, 2, 1)

    x, y = np.ones((80, 3), np.float32), np.ones((80, 2), np.float32)
    with pytest.raises(ReplicaDriftError, match="After step 4") as found:
        model.fit(x, y, batch_size=8, verbose=0, callbacks=[rx.keras.ReplicaDigest(every=2), Flips()])
    assert found.value.replicas == (2,)
    assert any("kernel" in name for name in found.value.variables)


def test_steps_that_are_made_together_count_each(mirrored):
    keras = pytest.importorskip("keras")
    strategy, told = mirrored(4), []
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile("adam", "mse", steps_per_execution=4)

    class Digest(type(rx.keras.ReplicaDigest(every=3))):
        def _begin(self):
            super()._begin()
            told.append(self._begun_at)

    x, y = np.ones((80, 3), np.float32), np.ones((80, 2), np.float32)
    model.fit(x, y, batch_size=8, epochs=2, verbose=0, callbacks=[Digest(every=5)])
    assert told == [8, 10, 18, 20]


def fitted(strategy, *callbacks, rows=16, epochs=1):
    keras = pytest.importorskip("keras")
    with strategy.scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8), keras.layers.BatchNormalization()])
        model.compile("adam", "mse")
    x, y = np.ones((rows, 8), np.float32), np.ones((rows, 8), np.float32)
    model.fit(x, y, batch_size=8, epochs=epochs, verbose=0, callbacks=list(callbacks))


def test_a_fit_that_is_shorter_than_the_distance_is_compared_at_its_end(mirrored):
    keras = pytest.importorskip("keras")

    class Flips(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 1:
                flip(self.model.layers[0].kernel, 2, 1)

    with pytest.raises(ReplicaDriftError, match="After step 2") as found:
        fitted(mirrored(4), rx.keras.ReplicaDigest(every=100), Flips())
    assert found.value.replicas == (2,)


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        (lambda: rx.OneDeviceStrategy("cpu:0"), "OneDeviceStrategy.* 0 of the 4 trainable"),
        (lambda: rx.CentralStorageStrategy(["cpu:0", "cpu:1"]), "CentralStorageStrategy.* 0 of the 4 trainable"),
        (
            lambda: rx.FullyShardedStrategy(["cpu:0", "cpu:1"], min_size=0),
            "FullyShardedStrategy.* 0 of the 4 trainable",
        ),
        (lambda: rx.LocalSGDStrategy(every=2, devices=["cpu:0"]), "LocalSGDStrategy.* 0 of the 4 trainable"),
    ],
)
def test_variables_that_have_no_copies_are_told_once(strategy, words):
    with pytest.warns(UserWarning, match="ReplicaDigest") as told:
        fitted(strategy(), rx.keras.ReplicaDigest(every=1), epochs=2)
    (only,) = [str(each.message) for each in told if "ReplicaDigest" in str(each.message)]
    assert re.search(words, only)


@pytest.mark.filterwarnings("error:ReplicaDigest")
def test_an_island_of_one_process_is_compared():
    fitted(rx.LocalSGDStrategy(every=2, devices=["cpu:0", "cpu:1"]), rx.keras.ReplicaDigest(every=1))


@pytest.mark.filterwarnings("error:ReplicaDigest")
def test_without_a_fault_it_says_nothing(mirrored):
    keras = pytest.importorskip("keras")
    with mirrored(2).scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile("adam", "mse")
    x, y = np.ones((16, 3), np.float32), np.ones((16, 2), np.float32)
    model.fit(x, y, batch_size=8, epochs=2, verbose=0, callbacks=[rx.keras.ReplicaDigest(every=1)])


@pytest.mark.parametrize("every", [0, 1.5, "epoch", True])
def test_numbers_that_are_no_number_of_steps(every):
    with pytest.raises(ArgumentError, match="`every` must be an int of at least 1, a number of steps"):
        rx.keras.ReplicaDigest(every=every)


def test_a_model_without_a_strategy():
    keras = pytest.importorskip("keras")
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    with pytest.raises(ArgumentError, match="belongs to no strategy"):
        model.fit(np.ones((2, 3)), np.ones((2, 2)), verbose=0, callbacks=[rx.keras.ReplicaDigest()])
