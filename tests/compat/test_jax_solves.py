"""Types of the constants of a linear solve, in programs of replicas."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import core
from jax._src.lax.control_flow import solves

import replicax as rx
from replicax.compat import jax_solves
from tests.compat.guards import needs

RNG = np.random.default_rng(0)
W, X = RNG.normal(size=(3, 3)).astype("float32"), RNG.normal(size=(4, 3)).astype("float32")


def test_jax_still_has_the_names():
    names = [name for name in jax_solves.RETYPING if hasattr(core, name)]
    needs("jax", " or ".join(jax_solves.RETYPING), lambda: getattr(core, names[0]))
    needs("jax", "solves.core", lambda: solves.core.Primitive)


def solved(w, x):
    matrix = w @ w.T + 2 * jnp.eye(3)
    solution = jax.lax.custom_linear_solve(
        lambda v: v @ matrix, x, lambda _, b: jnp.linalg.solve(matrix, b.T).T, symmetric=True
    )
    return jnp.sum(jnp.square(solution))


def by_vjp(w, x):
    value, back = jax.vjp(solved, w, x)
    return back(jnp.ones_like(value))


def of_the_rows(w, x):
    value, back = jax.vjp(lambda x: solved(w, x), x)
    return w, back(jnp.ones_like(value))[0]


# Ways for which nothing of replicax's stands.
WAYS = {
    "vjp": by_vjp,
    "jacrev": lambda w, x: jax.jacrev(solved, argnums=(0, 1))(w, x),
    "of the rows": of_the_rows,
    "jvp": lambda w, x: (jax.jvp(solved, (w, x), (w, x))[1], x),
}


@pytest.mark.daily(4)
@pytest.mark.parametrize("rows", [4, 1])
@pytest.mark.parametrize("way", WAYS)
def test_a_derivative_by_captured_weights_is_that_of_plain_jax(way, rows):
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    [x] = strategy.distribute_dataset([X[:rows]])
    of_weights, of_rows = strategy.run(WAYS[way], args=(strategy.replicate(W), x))
    if isinstance(of_weights, rx.PerReplica):
        of_weights = strategy.reduce("sum", of_weights, axis=None)
    expected = WAYS[way](W, X[:rows])
    np.testing.assert_allclose(of_weights, expected[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(strategy.gather(of_rows, axis=0), expected[1], rtol=1e-4, atol=1e-5)


def test_a_solver_that_is_given_by_name_and_has_its_own_rows_makes_the_solution_its_own():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    [x] = strategy.distribute_dataset([X[:2]])

    def step(w, x):
        solve = lambda matvec, b: b / 2 + 0 * x[0]  # noqa: E731
        return jax.lax.custom_linear_solve(matvec=lambda v: 2 * v, b=w[0], solve=solve, symmetric=True)

    found = strategy.run(step, args=(strategy.replicate(W), x))
    assert isinstance(found, rx.PerReplica)
    np.testing.assert_allclose(strategy.local_results(found)[1], W[0] / 2)
