"""Variables of a function that makes them each time it is called."""

from __future__ import annotations

import copy
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax.program.keras.variable_store import VariableStore


def called(store: VariableStore, fn: Any, *args: Any) -> Any:
    with store.call():
        return fn(*args)


def layered(x: Any) -> Any:
    hidden = keras.layers.Dense(3)(x)
    named = keras.layers.Dense(3, name="named")
    return keras.layers.Dense(2)(named(hidden) + named(hidden))


def test_the_second_call_gets_the_variables_of_the_first():
    store, x = VariableStore(), np.ones((2, 4), np.float32)
    first = called(store, layered, x)
    variables = store.variables
    paths = ["dense/kernel", "dense/bias", "named/kernel", "named/bias", "dense_1/kernel", "dense_1/bias"]
    assert list(variables) == paths
    np.testing.assert_array_equal(called(store, layered, x), first)
    assert all(store.variables[name] is variable for name, variable in variables.items())
    assert len(store.variables) == len(paths)


def test_names_begin_anew_in_each_store_and_go_on_outside_of_them():
    before = keras.layers.Dense(1).name
    for _ in range(2):
        store = VariableStore()
        called(store, layered, np.ones((1, 4), np.float32))
        assert next(iter(store.variables)) == "dense/kernel"
    number = int(before.removeprefix("dense").removeprefix("_") or 0)
    assert keras.layers.Dense(1).name == f"dense_{number + 1}"


def test_equal_names_are_numbered_in_the_order_of_a_call():
    store = VariableStore()

    def make():
        return [rx.Variable(i, name="w") for i in range(2)] + [rx.Variable(7.0), keras.Variable(1.0, name="w")]

    first, second = called(store, make), called(store, make)
    assert all(one is other for one, other in zip(first, second, strict=True))
    assert list(store.variables) == ["w", "w_1", "Variable", "w_2"]
    assert [float(np.asarray(each.value)) for each in second] == [0, 1, 7, 1]


def test_a_first_value_that_is_made_again_changes_nothing():
    store = VariableStore()
    w = called(store, lambda: rx.Variable(1.0, name="w"))
    w.assign(5.0)
    assert called(store, lambda: rx.Variable(lambda: 1 / 0, name="w")) is w
    assert float(w) == 5.0


def test_another_shape_is_refused_and_another_function_is_not_concerned():
    store = VariableStore()
    called(store, lambda: rx.Variable(np.zeros(2), name="w"))
    with pytest.raises(rx.errors.VariableError, match=r"made with shape \(2,\), and is made again with \(3,\)"):
        called(store, lambda: rx.Variable(np.zeros(3), name="w"))
    called(store, lambda: keras.layers.Dense(2, name="d")(np.ones((1, 2))))
    with pytest.raises(rx.errors.VariableError, match=r"made with shape \(2, 2\), and is made again with \(3, 2\)"):
        called(store, lambda: keras.layers.Dense(2, name="d")(np.ones((1, 3))))
    assert rx.Variable(np.zeros(3), name="w").shape == (3,)


def test_an_optimizer_in_a_step_finds_its_slots_again():
    store = VariableStore()

    def step(x):
        with store.call():
            layer = keras.layers.Dense(1, kernel_initializer="ones")
            layer(x)
            optimizer = keras.optimizers.SGD(0.5, momentum=0.5)
            loss, gradients = rx.value_and_grad(lambda: jnp.mean(layer(x)), layer.trainable_variables)()
            optimizer.apply(gradients, layer.trainable_variables)
        return loss

    train = rx.function(step)
    losses = [float(train(np.ones((rows, 2), np.float32))) for rows in (4, 4, 3)]
    assert losses == pytest.approx([2.0, 0.5, -1.75])  # bias and both weights: 0.5, then 0.75 less
    assert "sgd/dense_kernel_momentum" in store.variables
    assert int(np.asarray(store.variables["sgd/iteration"].value)) == 3


def test_a_copy_of_a_variable_is_no_variable_of_the_store():
    store = VariableStore()

    def make():
        w = rx.Variable(1.0, name="w")
        return w, copy.deepcopy(w)

    (first, copied), (again, other) = called(store, make), called(store, make)
    assert first is again
    assert copied is not first
    assert other is not copied
    assert list(store.variables) == ["w"]


def test_a_call_with_real_values_makes_variables_and_assigns_none():
    store = VariableStore()

    def make(x):
        with store.call():
            w = rx.Variable(jnp.full(2, 3.0), name="w")  # In a trace this would be no number.
            w.assign_add(x)
            mean = keras.metrics.Mean(name="m")
            mean.update_state(w.value)
            return mean.result()

    assert float(store.call_for_real(make, np.ones(2, np.float32))) == 4.0
    assert [float(np.max(each.value)) for each in store.variables.values()] == [3.0, 0.0, 0.0]
    train = rx.function(make)
    assert float(train(jnp.ones(2))) == 4.0
    assert float(store.variables["w"].value[0]) == 4.0


def test_build_makes_the_variables_and_computes_nothing():
    ran = []

    def step(x):
        jax.debug.callback(ran.append, x[0, 0])
        return layer(x)

    layer = keras.layers.Dense(2)
    used = rx.function(step).build(jnp.ones((3, 4)))
    assert {id(variable) for variable in used} == {id(variable) for variable in layer.variables}
    jax.effects_barrier()
    assert ran == []


def test_a_name_that_was_made_of_another_one_is_nobody_elses():
    store = VariableStore()
    for _ in range(2):
        with store.call():
            made = [rx.Variable(float(i), name=name) for i, name in enumerate(["w", "w", "w_1", "w", "w_1"])]
        assert [float(variable.numpy()) for variable in made] == [0.0, 1.0, 2.0, 3.0, 4.0]
