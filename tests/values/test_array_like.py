from __future__ import annotations

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax.errors import VariableError

USES = {
    "jnp.sum": jnp.sum,
    "jnp.dot": lambda v: jnp.dot(v, v),
    "jnp.where": lambda v: jnp.where(True, v, 0.0),
    "jax.nn.relu": jax.nn.relu,
    "jax.lax.sin": jax.lax.sin,
    "jax.grad": lambda v: jax.grad(lambda w: (w * w).sum())(v),
    "jax.value_and_grad of a list": lambda v: jax.value_and_grad(lambda w: (w[0] * w[0]).sum())([v]),
    "jax.vjp": lambda v: jax.vjp(lambda w: w * w, v),
    "jax.jvp": lambda v: jax.jvp(lambda w: w * w, (v,), (v,)),
    "jax.jit": lambda v: jax.jit(lambda w: w + 1)(v),
    "jax.vmap": jax.vmap(jnp.sin),
    "jax.lax.scan": lambda v: jax.lax.scan(lambda carry, row: (carry + row, row), 0.0, v),
    "jax.lax.cond": lambda v: jax.lax.cond(True, lambda a: a, lambda a: a, v),
    "jax.checkpoint": lambda v: jax.checkpoint(lambda a: a)(v),
    "jax.tree.map": lambda v: jax.tree.map(jnp.sum, [v]),
}


@pytest.fixture(params=["rx", "keras"])
def variable(request, mirrored):
    with mirrored(2).scope():
        return rx.Variable(jnp.ones(3)) if request.param == "rx" else keras.Variable(jnp.ones(3))


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_function_of_jax_that_gets_a_variable_says_what_to_give_it(variable, use, mirrored):
    for call in (lambda: use(variable), lambda: mirrored(2).run(lambda: use(variable))):
        with pytest.raises(VariableError, match=r"v\.value.*rx\.value_and_grad"):
            call()


def test_operators_conversions_and_what_converts_first_take_variables(variable):
    for result in (variable + 1, jnp.ones(3) + variable, jnp.asarray(variable) * 2, keras.ops.add(variable, 1)):
        np.testing.assert_array_equal(result, np.full(3, 2.0))
    assert jnp.stack([variable, variable]).shape == (2, 3)
    assert float(jnp.sum(variable.value)) == 3.0
