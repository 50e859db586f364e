"""Operations, counted in traced programs."""

from __future__ import annotations

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from replicax.planning.work import work_of

A, B = jnp.ones((8, 16)), jnp.ones((16, 4))
IMAGES, KERNEL = jnp.ones((2, 3, 8, 8)), jnp.ones((5, 3, 3, 3))
PRODUCT = 2 * 8 * 16 * 4


def flops(function, *args):
    return work_of(jax.make_jaxpr(function)(*args)).flops


@pytest.mark.parametrize(
    ("function", "args", "count"),
    [
        (lambda a, b: a @ b, (A, B), PRODUCT),
        (jax.jit(lambda a, b: a @ b), (A, B), PRODUCT),
        (lambda a, b: jnp.tanh(a @ b) + 1, (A, B), PRODUCT + 2 * 32),
        (lambda a: a.sum(), (A,), 128),
        (lambda a: jax.lax.stop_gradient(a), (A,), 0),
        (lambda n: n + 1, (jnp.arange(4),), 0),
        (lambda a: jax.lax.cond(a[0, 0] > 0, lambda: a + 1, lambda: a * 2 + 1), (A,), 256),
        (lambda a: jax.lax.scan(lambda c, _: (c + a, None), a, length=7)[0], (A,), 7 * 128),
        (
            lambda x, k: jax.lax.conv(x, k, (1, 1), "SAME"),
            (jnp.ones((2, 3, 8, 8)), jnp.ones((5, 3, 3, 3))),
            2 * 640 * 27,
        ),
    ],
    ids=["product", "under jit", "elements", "sum", "no gradient", "integers", "branches", "loop", "convolution"],
)
def test_each_operation_counts(function, args, count):
    assert flops(function, *args) == count


def test_the_backward_pass_of_a_product_counts_twice():
    assert flops(jax.grad(lambda a, b: (a @ b)[0, 0], (0, 1)), A, B) in range(3 * PRODUCT, 3 * PRODUCT + 100)


def test_what_is_mapped_counts_on_each_device():
    mesh = Mesh(np.array(jax.devices()), ("x",))
    spec = PartitionSpec("x")
    mapped = jax.shard_map(lambda a: a @ B, mesh=mesh, in_specs=spec, out_specs=spec)
    assert flops(mapped, A) == PRODUCT


def test_a_loop_of_unknown_length_is_told():
    found = work_of(jax.make_jaxpr(lambda a: jax.lax.while_loop(lambda c: c[0, 0] < 9, lambda c: c + 1, a))(A))
    assert found.unknown == {"while"}
    assert work_of(jax.make_jaxpr(lambda a: jax.lax.scan(lambda c, _: (c, None), a, length=7))(A)).lengths == {7}


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (jax.export.export(jax.jit(lambda a: a + 1))(A).call, "call_exported"),
        (lambda a: jnp.linalg.svd(a), "svd"),
        (lambda a: jnp.fft.fft(a), "fft"),
        (lambda a: jax.pure_callback(np.sin, A, a), "pure_callback"),
    ],
    ids=["exported", "algorithm", "transform", "callback"],
)
def test_operations_without_a_number_of_them_are_told(function, name):
    assert work_of(jax.make_jaxpr(function)(A)).unknown == {name}
