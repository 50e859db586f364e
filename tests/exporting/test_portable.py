"""Programs without placement."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from replicax import dtensor
from replicax.errors import ExportError
from replicax.exporting.portable import without_placement

X = np.linspace(-1.0, 1.0, 16, dtype=np.float32).reshape(8, 2)


@pytest.fixture(scope="module")
def cut():
    mesh = dtensor.create_mesh([("x", 8)])
    layout = dtensor.Layout(["x", dtensor.UNSHARDED], mesh)
    return lambda value: dtensor.relayout(value, layout)


def check(fn, *args):
    """The function without placement gives the same numbers, and XLA sees no placement in it."""
    portable = without_placement(jax.make_jaxpr(fn)(*args))
    text = str(jax.make_jaxpr(portable)(*args))
    assert "sharding_constraint" not in text
    assert "device_put" not in text
    for got, expected in zip(jax.jit(portable)(*args), jax.tree.leaves(fn(*args)), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_constraints_disappear(cut):
    check(lambda x: cut(x) + 1, X)


def test_inside_loops_and_conditions(cut):
    def fn(x):
        x, _ = jax.lax.scan(lambda c, _: (cut(c + 1), None), x, None, length=3)
        x = jax.lax.cond(x.sum() > 0, lambda x: cut(x * 2), lambda x: x, x)
        return jax.lax.while_loop(lambda x: x.sum() < 100, lambda x: cut(x * 2), x)

    check(fn, X)


def test_inside_functions_with_gradients_of_their_own(cut):
    check(lambda x: jax.nn.relu(cut(x)) + jax.checkpoint(lambda x: cut(jnp.sin(x)))(x), X)
    check(jax.grad(lambda x: jnp.sum(jax.nn.relu(cut(x)) ** 2)), X)


def test_inside_compiled_functions(cut):
    check(jax.jit(lambda x: (cut(x), jax.jit(lambda y: cut(y) * 2)(x))), X)


def test_random_numbers_stay():
    check(lambda key: jax.random.normal(jax.random.wrap_key_data(key), (4,)), jnp.array([1, 2], jnp.uint32))


def test_constants_and_unused_arguments(cut):
    table = jnp.arange(8.0)[:, None]
    check(lambda x, unused: (cut(x) + table, 3.0), X, X)


def test_a_program_for_certain_devices_is_refused():
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("x")
    fn = jax.shard_map(lambda x: jax.lax.psum(x, "x"), mesh=mesh, in_specs=spec, out_specs=jax.sharding.PartitionSpec())
    with pytest.raises(ExportError, match="shard_map"):
        without_placement(jax.make_jaxpr(fn)(X))(X)
