"""Updates by rows: equal to the whole update on those rows, or refused."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings, strategies as st

from replicax.parameter_server.compiling.row_wise import NotByRowsError, evaluate_rows
from replicax.program.ir.interpreter import evaluate_elsewhere
from replicax.program.ir.jaxprs import read
from replicax.program.ir.moving import inlined

ROWS, COLUMNS = 6, 3


def by_rows(update, arrays, scalars=(), rows=slice(1, 4)):
    """Runs `update(*arrays, *scalars)` whole and on some rows of the arrays; returns both, cut to these rows."""
    args = [*arrays, *scalars]
    program = inlined(jax.make_jaxpr(update)(*args))
    invars, outvars = program.jaxpr.invars, program.jaxpr.outvars
    consts = dict(zip(program.jaxpr.constvars, program.consts, strict=True))

    @jax.jit
    def in_parts(*args):
        values, having_rows = dict(zip(invars, args, strict=True)) | consts, set(invars[: len(arrays)])
        evaluate_rows(program.jaxpr.eqns, values, having_rows, ROWS, rows.stop - rows.start)
        assert having_rows.issuperset(outvars)
        return [read(var, values) for var in outvars]

    @jax.jit
    def as_a_whole(*args):
        values = dict(zip(invars, args, strict=True)) | consts
        evaluate_elsewhere(program.jaxpr.eqns, values)
        return [read(var, values) for var in outvars]

    parts = [np.asarray(array)[rows] for array in arrays]
    return in_parts(*parts, *scalars), [np.asarray(whole)[rows] for whole in as_a_whole(*args)]


def table(seed=0, shape=(ROWS, COLUMNS)):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def optax_update(optimizer, shape):
    """Returns an update `(parameter, *state, gradient) -> [parameter, *state]` and what of it has rows."""
    state, treedef = jax.tree.flatten(optimizer.init(jnp.zeros(shape)))
    arrays = [leaf for leaf in state if leaf.shape == shape]
    scalars = [leaf for leaf in state if leaf.shape != shape]

    def update(parameter, gradient, *leaves):
        remaining, others = iter(leaves[: len(arrays)]), iter(leaves[len(arrays) :])
        mixed = [next(remaining) if leaf.shape == shape else next(others) for leaf in state]
        updates, new = optimizer.update(gradient, jax.tree.unflatten(treedef, mixed), parameter)
        return [parameter + updates, *(leaf for leaf in jax.tree.leaves(new) if leaf.shape == shape)]

    return update, [np.abs(table(i, shape)) for i in range(len(arrays))], scalars


BY_ROW = {
    "sgd": optax.sgd(0.1),
    "momentum": optax.sgd(0.1, momentum=0.9, nesterov=True),
    "adam": optax.adam(1e-2),
    "amsgrad": optax.amsgrad(1e-2),
    "adamax": optax.adamax(1e-2),
    "adagrad": optax.adagrad(1e-2),
    "rmsprop": optax.rmsprop(1e-2, momentum=0.9, centered=True),
    "weight decay": optax.adamw(1e-2, weight_decay=0.1),
    "lion": optax.lion(1e-2),
    "clip by value": optax.chain(optax.clip(0.1), optax.adam(1e-2)),
    "sign": optax.sign_sgd(0.1),
}


@pytest.mark.daily(5)
@pytest.mark.parametrize("name", BY_ROW)
@pytest.mark.parametrize("shape", [(ROWS, ROWS), (ROWS,)], ids=str)
def test_optimizers_that_work_by_element(name, shape):
    update, state, scalars = optax_update(BY_ROW[name], shape)
    ours, whole = by_rows(update, [table(8, shape), table(9, shape), *state], scalars)
    for a, b in zip(ours, whole, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


ROW_WISE = {
    "norms of rows": lambda v, g: v / jnp.linalg.norm(v, axis=1, keepdims=True) - g,
    "softmax over columns": lambda v, g: jax.nn.softmax(v, axis=-1) * g,
    "largest of a row": lambda v, g: v.max(axis=1),
    "where": lambda v, g: jnp.where(jnp.abs(g).sum(axis=1, keepdims=True) > 0, v - g, v),
    "reset": lambda v, g: jnp.zeros_like(v),
    "the gradient itself": lambda v, g: g,
    "a new dimension": lambda v, g: (v[:, None, :] * g[:, :, None]).sum(-1),
    "columns put together": lambda v, g: v.reshape(ROWS, -1) + g,
    "a vector for all rows": lambda v, g: v + jnp.arange(3.0),
    "a constant row": lambda v, g: v + jnp.arange(3.0)[None, :],
    "activations": lambda v, g: jax.nn.gelu(v, approximate=False) + jax.nn.sigmoid(g) + jnp.tanh(v) ** 3,
    "lower precision": lambda v, g: (v.astype(jnp.bfloat16) - g.astype(jnp.bfloat16)).astype(jnp.float32),
    "finite": lambda v, g: jnp.where(jnp.isfinite(g), v, 0.0),
    "best column": lambda v, g: v * jnp.argmax(g, axis=1, keepdims=True),
}


@pytest.mark.daily(3)
@pytest.mark.parametrize("name", ROW_WISE)
def test_functions_of_rows(name):
    ours, whole = by_rows(lambda v, g: [ROW_WISE[name](v, g)], [table(0), table(1)])
    np.testing.assert_allclose(ours[0], whole[0], rtol=1e-6)


COLUMN_WISE = {
    "columns cut out": lambda v, g: v[:, 1:] + g[:, :2],
    "columns changed places": lambda v, g: jnp.concatenate([v[:, 1:], g[:, :1]], axis=1),
    "dimensions changed places": lambda v, g: jnp.transpose(v[:, :, None] * g[:, None, :], (0, 2, 1)).sum(1),
    "sums of columns": lambda v, g: jnp.cumsum(v, axis=1) - g,
    "one column changed": lambda v, g: v.at[:, 1].add(g[:, 0]),
}


@pytest.mark.parametrize("name", COLUMN_WISE)
def test_functions_of_columns(name):
    ours, whole = by_rows(lambda v, g: [COLUMN_WISE[name](v, g)], [table(0), table(1)])
    np.testing.assert_allclose(ours[0], whole[0], rtol=1e-6)


MIXING = {
    "norm of all": lambda v, g: v / jnp.linalg.norm(v),
    "softmax over rows": lambda v, g: jax.nn.softmax(v, axis=0),
    "mean": lambda v, g: v - v.mean(axis=0),
    "transpose": lambda v, g: (v.T * 2).T,
    "reversal": lambda v, g: v[::-1],
    "cumulative sum": lambda v, g: jnp.cumsum(v, axis=0),
    "sorting": lambda v, g: jnp.sort(v, axis=0),
    "rolling": lambda v, g: jnp.roll(v, 1, axis=0),
    "matrix product": lambda v, g: v @ (v.T @ g),
    "number of the row": lambda v, g: v * jnp.arange(ROWS, dtype=jnp.float32)[:, None],
    "other constants for each row": lambda v, g: v * np.linspace(0, 1, ROWS, dtype=np.float32)[:, None],
    "one row for all": lambda v, g: v + v[0],
    "flat": lambda v, g: v.reshape(-1).reshape(ROWS, COLUMNS),
    "condition": lambda v, g: jax.lax.cond((g > 0).any(), lambda: v, lambda: -v),
    "loop": lambda v, g: jax.lax.fori_loop(0, 3, lambda i, v: v * 2, v),
}


@pytest.mark.parametrize("name", MIXING)
def test_what_mixes_rows_is_refused(name):
    with pytest.raises(NotByRowsError, match=r"`[\w-]+` of shapes .* mixes the rows of a variable"):
        by_rows(lambda v, g: [MIXING[name](v, g)], [table(0), table(1)])


@pytest.mark.parametrize("name", ["lamb", "lars", "adafactor", "clip by norm"])
def test_optimizers_that_need_the_whole_variable_are_refused(name):
    made = {
        "lamb": optax.lamb(1e-2),
        "lars": optax.lars(1e-2),
        "adafactor": optax.adafactor(1e-2, min_dim_size_to_factor=2),
        "clip by norm": optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)),
    }
    update, state, scalars = optax_update(made[name], (ROWS, COLUMNS))
    with pytest.raises(NotByRowsError):
        by_rows(update, [table(8), table(9), *state], scalars)


def test_a_table_of_one_row_may_become_a_scalar_but_not_unnoticed():
    args = [jnp.ones((1,))]
    program = inlined(jax.make_jaxpr(lambda v: v.reshape(()))(*args))
    (var,) = program.jaxpr.invars
    with pytest.raises(NotByRowsError):
        evaluate_rows(program.jaxpr.eqns, {var: args[0]}, {var}, 1, 1)


@settings(max_examples=8)
@given(start=st.integers(0, ROWS - 1), count=st.integers(0, ROWS), seed=st.integers(0, 1000))
def test_any_rows_will_do(start, count, seed):
    rows = slice(start, min(ROWS, start + count))
    ours, whole = by_rows(
        lambda v, g: [v - 0.1 * g / (jnp.sqrt(g * g) + 1e-7)], [table(seed), table(seed + 1)], (), rows
    )
    np.testing.assert_allclose(ours[0], whole[0], rtol=1e-6)
