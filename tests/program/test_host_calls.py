"""Functions of the host that fail on some devices only."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import replicax as rx
from replicax.errors import ProgramError

SCALAR = jax.ShapeDtypeStruct((), jnp.float32)


def fails_above_one(x):
    if x > 1:
        raise ZeroDivisionError("on the host")
    return np.float32(x)


def returns_two_above_one(x):
    return np.ones(2 if x > 1 else (), np.float32)


CALLS = {
    "pure_callback": lambda x: jax.pure_callback(fails_above_one, SCALAR, x),
    "io_callback": lambda x: io_callback(fails_above_one, SCALAR, x),
    "debug.callback": lambda x: jax.debug.callback(fails_above_one, x) or x,
    "in a loop": lambda x: jax.lax.scan(lambda c, _: (CALLS["pure_callback"](c), None), x, None, length=2)[0],
    "in a map": lambda x: jax.vmap(lambda x: jax.pure_callback(fails_above_one, SCALAR, x, vmap_method="sequential"))(
        x[None]
    ).sum(),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_function_that_fails_on_one_of_two_devices_is_an_error_that_names_it(two, per_replica, name):
    """The other device waits for the sum: XLA alone would wait forever."""
    with two.scope():
        total = rx.Variable(0.0, name="total")

    def step(x):
        total.assign_add(jax.lax.psum(CALLS[name](x), "replica"))

    with pytest.raises(ProgramError, match=r"by jax\..*callback \(.*\).*ZeroDivisionError: on the host") as caught:
        two.run(step, args=(per_replica(two, 1.0, 2.0),))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert float(total) == 0.0
    two.run(step, args=(per_replica(two, 0.5, 1.0),))
    assert float(total) == 1.5


def test_a_result_of_another_shape_is_one_too(two, per_replica):
    def step(x):
        return jax.lax.psum(jax.pure_callback(returns_two_above_one, SCALAR, x), "replica")

    with pytest.raises(ProgramError, match=r"returned float32\[2\], and was to return float32\[\]"):
        two.run(step, args=(per_replica(two, 1.0, 2.0),))
    assert float(two.run(step, args=(per_replica(two, 1.0, 1.0),))) == 2.0


def test_a_function_that_jax_compiles_around_it_gets_no_zeros():
    """There nobody would look whether the function has failed."""
    multiply = rx.function(lambda x: 2 * jax.pure_callback(fails_above_one, SCALAR, x))
    assert float(multiply(jnp.float32(1.0))) == 2.0
    with pytest.raises(Exception, match="on the host"):
        jax.block_until_ready(jax.jit(multiply)(jnp.float32(2.0)))
