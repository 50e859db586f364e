"""Gradients of global arrays that are sums over rows: which are found, how they travel, that they stay the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax.program.ir.jaxprs import marked_as_gradient
from replicax.program.replicas.global_sums import RowSums
from replicax.runtime import REPLICA_AXIS

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(16, 8)).astype("float32"), RNG.normal(size=(16, 4)).astype("float32")
PARAMS = {"w": RNG.normal(size=(8, 4)).astype("float32"), "b": np.ones(4, "float32")}


def squares(params: Any, x: Any, y: Any) -> Any:
    return jnp.sum((x @ params["w"] + params["b"] - y) ** 2)


def stepped(loss: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a step of gradient descent, whose gradients are marked."""

    def step(params: Any, x: Any, y: Any) -> Any:
        grads = jax.tree.map(marked_as_gradient, jax.grad(loss)(params, x, y))
        return jax.tree.map(lambda p, g: p - 0.01 * g / jnp.sqrt(g * g + 1), params, grads)

    return step


def summed(loss: Callable[..., Any], args: tuple[Any, ...], dimensions: Any, replicas: int = 4) -> tuple[RowSums, str]:
    """Returns what is found in a step; asserts that it computes the same; returns its HLO too."""
    leaves, treedef = jax.tree.flatten(args)
    step = stepped(loss)
    program = jax.make_jaxpr(jax.jit(lambda *each: jax.tree.leaves(step(*jax.tree.unflatten(treedef, each)))))(*leaves)
    mesh = jax.make_mesh((replicas,), (REPLICA_AXIS,), axis_types=(jax.sharding.AxisType.Auto,))
    found = RowSums(program, mesh, dimensions)

    def evaluated(*each: Any) -> Any:
        values = dict(zip(program.jaxpr.invars, each, strict=True))
        values.update(zip(program.jaxpr.constvars, program.consts, strict=True))
        found.evaluate(program.jaxpr.eqns, values)
        return [values[var] for var in program.jaxpr.outvars]

    compiled = jax.jit(evaluated).lower(*leaves).compile()
    for ours, theirs in zip(compiled(*leaves), jax.tree.leaves(step(*args)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    return found, compiled.as_text()


def test_the_gradients_of_a_layer_are_sums_over_rows():
    found, hlo = summed(squares, (PARAMS, X, Y), {})
    assert len(found.gradients) == 2
    assert hlo.count(" all-reduce(") == 1  # one pack
    assert "reduce-scatter(" not in hlo


def test_a_gradient_of_which_a_shard_is_needed_is_scattered():
    _, hlo = summed(squares, (PARAMS, X, Y), {(8, 4): 0})
    assert hlo.count(" reduce-scatter(") == 1


def test_a_gradient_whose_sum_is_only_a_part_of_it_is_left_alone():
    def loss(params: Any, x: Any, y: Any) -> Any:
        return squares(params, x, y) + jnp.sum(params["w"] ** 2)

    found, _ = summed(loss, (PARAMS, X, Y), {})
    assert [gradient.mark.outvars[0].aval.shape for gradient in found.gradients] == [(4,)]


def test_sums_over_other_dimensions_and_over_rows_that_nobody_can_split_are_left_alone():
    def by_columns(params: Any, x: Any, y: Any) -> Any:
        return jnp.sum((params["w"].T @ x.T + params["b"][:, None] - y.T) ** 2)

    found, _ = summed(by_columns, (PARAMS, X, Y), {})
    assert found.gradients == []
    found, _ = summed(squares, (PARAMS, X, Y), {}, replicas=3)
    assert found.gradients == []


def test_a_product_of_weights_with_as_many_rows_as_the_batch_stays_right():
    def loss(params: Any, x: Any, y: Any) -> Any:
        return jnp.sum((params["a"] @ params["c"]) ** 2) + jnp.sum(x) + jnp.sum(y)

    params = {"a": X, "c": PARAMS["w"]}
    found, _ = summed(loss, (params, X, Y), {})
    assert len(found.gradients) == 1  # of `c`: a sum over the rows of `a`, which are as many


def test_a_weight_that_the_loss_does_not_use_has_a_number_as_its_gradient():
    params = {**PARAMS, "unused": np.float32(1)}
    found, _ = summed(squares, (params, X, Y), {})
    assert [gradient.mark.outvars[0].aval.shape for gradient in found.gradients] == [(4,), (8, 4)]


def test_the_gradients_of_a_second_update_in_the_same_step_are_left_alone():
    first = stepped(squares)
    leaves, treedef = jax.tree.flatten((PARAMS, X, Y))

    def twice(*each: Any) -> Any:
        params, x, y = jax.tree.unflatten(treedef, each)
        return jax.tree.leaves(first(first(params, x, y), x, y))

    mesh = jax.make_mesh((4,), (REPLICA_AXIS,), axis_types=(jax.sharding.AxisType.Auto,))
    program = jax.make_jaxpr(jax.jit(twice))(*leaves)
    found = RowSums(program, mesh, {})
    assert len(found.gradients) == 2

    def evaluated(*each: Any) -> Any:
        values = dict(zip(program.jaxpr.invars, each, strict=True))
        found.evaluate(program.jaxpr.eqns, values)
        return [values[var] for var in program.jaxpr.outvars]

    for ours, theirs in zip(jax.jit(evaluated)(*leaves), twice(*leaves), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_two_small_gradients_of_different_dtypes_do_not_travel_together():
    def loss(params: Any, x: Any, y: Any) -> Any:
        half = (x.astype(jnp.bfloat16) * params["s"]).astype(jnp.float32)
        return squares(params, half, y)

    params = {**PARAMS, "s": np.ones(8, jnp.bfloat16)}
    leaves_of = jax.tree.leaves(params)
    assert {leaf.dtype for leaf in leaves_of} == {np.dtype("float32"), jnp.bfloat16.dtype}
    found, _ = summed(squares, (PARAMS, X, Y), {})
    assert len(found.gradients) == 2
    program = jax.make_jaxpr(jax.jit(lambda p, x, y: jax.tree.leaves(stepped(loss)(p, x, y))))(params, X, Y)
    mesh = jax.make_mesh((2,), (REPLICA_AXIS,), axis_types=(jax.sharding.AxisType.Auto,))
    assert len(RowSums(program, mesh, {}).gradients) == 3


def collectives_of_fit(strategy: rx.Strategy, rows: int) -> str:
    """Returns the HLO of a training step of `fit`."""
    with strategy.scope():
        layers = [keras.layers.Dense(64, "relu"), keras.layers.Dense(96, "relu"), keras.layers.Dense(4)]
        model = keras.Sequential([keras.Input((64,)), *layers])
        model.compile("adam", "mse")
    x, y = np.ones((rows, 64), "float32"), np.ones((rows, 4), "float32")
    model.fit(x, y, batch_size=rows, verbose=0)
    runnable = model.train_function._runnable
    [[program]] = runnable.run._programs._programs.values()
    hlo: str = program.lower(jax.tree.leaves(runnable.feed.placed((x, y)))).compile().as_text()
    return hlo


@pytest.mark.parametrize("replicas", [2, 4])
def test_fit_scatters_the_gradients_of_what_its_optimizer_shards(replicas):
    """Both kernels of at least 4,096 elements have sharded moments; the rest travels in one sum."""
    hlo = collectives_of_fit(rx.MirroredStrategy(replicas), 16)
    assert hlo.count(" reduce-scatter(") == 2
    assert hlo.count(" all-reduce(") == 1


def test_fit_on_one_device_and_with_rows_that_do_not_divide_has_nothing_of_it():
    assert "reduce-scatter(" not in collectives_of_fit(rx.MirroredStrategy(1), 16)
    assert "reduce-scatter(" not in collectives_of_fit(rx.MirroredStrategy(2), 15)
