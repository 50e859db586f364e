"""JAX's polynomials, with which it computes derivatives since 0.12, in programs of replicas."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax._src.lax import lax

import replicax as rx
from tests.compat.guards import needs

FUNCTIONS = {
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "erf_inv": jax.lax.erf_inv,
    "lgamma": lambda x: jax.lax.lgamma(x + 1),
    "bessel": jax.lax.bessel_i0e,
}


@pytest.mark.skipif(not hasattr(jax.lax, "polynomial"), reason="this JAX has no polynomials")
def test_jax_still_has_the_primitive():
    needs("jax", "polynomial_p", lambda: lax.polynomial_p)


@pytest.mark.skipif(not hasattr(jax.lax, "polynomial"), reason="this JAX has no polynomials")
@pytest.mark.parametrize("coefficients", [(1.0, 2.0, 3.0), (np.float32(1), 2.0)])
def test_coefficients_may_be_equal_where_the_argument_is_not(coefficients):
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    [x] = strategy.distribute_dataset([np.arange(4, dtype="float32")])
    polynomial = rx.function(lambda x: strategy.run(lambda x: jax.lax.polynomial(x, coefficients), args=(x,)))
    found = np.concatenate([np.asarray(each) for each in strategy.local_results(polynomial(x))])
    np.testing.assert_allclose(found, np.polynomial.Polynomial(coefficients)(np.arange(4)), rtol=1e-6)


@pytest.mark.daily(2)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_are_those_of_one_device(name: str):
    values = np.linspace(0.1, 0.9, 8, dtype="float32")
    derivative = jax.grad(lambda x: FUNCTIONS[name](x).sum())
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    [x] = strategy.distribute_dataset([values])
    found = rx.function(lambda x: strategy.run(derivative, args=(x,)))(x)
    whole = np.concatenate([np.asarray(each) for each in strategy.local_results(found)])
    np.testing.assert_allclose(whole, derivative(values), rtol=1e-5)
