"""Types of what the rules of `jax.custom_vjp` return, in programs of replicas."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import custom_derivatives, lax

import replicax as rx
from tests.compat.guards import needs


@pytest.mark.parametrize("name", ["scan", "while_loop", "fori_loop", "cond", "switch", "custom_linear_solve"])
def test_jax_uses_the_functions_of_lax_from_there(name):
    needs("jax", f"_src.lax.{name}", lambda: getattr(lax, name))


@pytest.mark.parametrize("name", ["_flatten_fwd", "_flatten_bwd"])
def test_jax_still_has_the_name(name):
    needs("jax", name, lambda: getattr(custom_derivatives, name))


@jax.custom_vjp
def scaled(tree, rows):
    return tree["w"] * rows


def backward(saved, g):
    _, rows = saved
    return {"w": jnp.sum(g * rows), "unused": None}, jnp.ones(rows.shape)


scaled.defvjp(lambda tree, rows: (tree["w"] * rows, (tree, rows)), backward)


def test_what_a_rule_returns_gets_the_operands_type():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    [rows] = strategy.distribute_dataset([np.arange(4, dtype="float32")])

    def step(rows):
        tree = {"w": jnp.float32(2.0), "unused": jnp.zeros(3)}
        return jax.grad(lambda tree, rows: jnp.sum(scaled(tree, jnp.sin(rows))), argnums=(0, 1))(tree, rows)

    tree, of_rows = strategy.run(step, args=(rows,))
    np.testing.assert_allclose(tree["w"], np.sum(np.sin(np.arange(4.0))), rtol=1e-6)
    np.testing.assert_array_equal(tree["unused"], np.zeros(3))
    found = np.concatenate([np.asarray(each) for each in strategy.local_results(of_rows)])
    np.testing.assert_allclose(found, np.cos(np.arange(4.0)), rtol=1e-6)


def test_a_rule_that_returns_another_structure_gets_jaxs_error():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    [rows] = strategy.distribute_dataset([np.arange(4, dtype="float32")])
    wrong = jax.custom_vjp(lambda x: x)
    wrong.defvjp(lambda x: (x, None), lambda _, g: (g, g))
    with pytest.raises(TypeError, match="must produce an output with the same container"):
        strategy.run(lambda rows: jax.grad(lambda x: jnp.sum(wrong(x)))(rows), args=(rows,))
