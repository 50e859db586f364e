"""Random numbers that belong to rows: the replicas together draw what one device draws."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ArgumentError, ProgramError

ROWS = 24
X = np.linspace(-1, 1, ROWS * 3, dtype=np.float32).reshape(ROWS, 3)
KEY = jax.random.key(7)


@pytest.fixture(scope="module")
def strategies():
    return {n: rx.MirroredStrategy([f"cpu:{i}" for i in range(n)], random_numbers="per_row") for n in (2, 3, 4, 8)}


def on_replicas(strategy, fn, x=X, key=KEY):
    """Returns what `fn(key, rows)` returns on all replicas, put together."""
    [batch] = strategy.distribute_dataset([x])
    return jax.tree.map(
        lambda leaf: strategy.gather(leaf, axis=0) if isinstance(leaf, rx.PerReplica) else leaf,
        strategy.run(fn, args=(key, batch)),
        is_leaf=lambda leaf: isinstance(leaf, rx.PerReplica),
    )


def check(strategies, fn, x=X, key=KEY, numbers=(3, 8)):
    """Checks that replicas, any number of them, draw the bits that one device draws."""
    expected = jax.jit(fn)(key, x)
    for number in numbers:
        strategy = strategies[number]
        jax.tree.map(
            functools.partial(np.testing.assert_array_equal, err_msg=f"{number} replicas"),
            on_replicas(strategy, fn, x, key),
            expected,
        )


def rows(x):
    return x.shape[0]


def first_large(key):
    """Returns the first number above 0.7, for a key of a row."""
    start = (key, 0.0)
    return jax.lax.while_loop(
        lambda c: c[1] < 0.7, lambda c: (jax.random.split(c[0])[0], jax.random.uniform(c[0])), start
    )[1]


DRAWS = {
    "normal": lambda key, x: jax.random.normal(key, x.shape),
    "uniform": lambda key, x: jax.random.uniform(key, (rows(x),), minval=x[:, 0], maxval=5.0),
    "bernoulli": lambda key, x: jax.random.bernoulli(key, 0.3, x.shape),
    "bfloat16": lambda key, x: jax.random.normal(key, x.shape, jnp.bfloat16),
    "uint8": lambda key, x: jax.random.bits(key, x.shape, jnp.uint8),
    "randint": lambda key, x: jax.random.randint(key, (rows(x), 2), -5, 900),
    "categorical": lambda key, x: jax.random.categorical(key, x),
    "truncated_normal": lambda key, x: jax.random.truncated_normal(key, -1.0, 2.0, x.shape),
    "exponential": lambda key, x: jax.random.exponential(key, x.shape),
    "second": lambda key, x: jax.random.normal(key, (5, rows(x), 2)).swapaxes(0, 1),
    "folded": lambda key, x: jax.random.normal(key, (rows(x) * 4, 3)).reshape(rows(x), 4, 3),
    "split": lambda key, x: jax.vmap(jax.random.normal)(jax.random.split(key, rows(x))),
    "split_in_two": lambda key, x: jax.vmap(jax.vmap(jax.random.normal))(jax.random.split(key, (rows(x), 2))),
    "legacy": lambda key, x: jax.random.normal(jax.random.split(jax.random.PRNGKey(3))[0], x.shape),
    "others": lambda key, x: [jax.random.normal(k, (3, 4)) for k in jax.random.split(key)],
    "rbg": lambda key, x: jax.random.normal(jax.random.key(1, impl="rbg"), x.shape),
    "vmap": lambda key, x: jax.vmap(lambda row: row + jax.random.normal(key, row.shape))(x),
    "vmap_columns": lambda key, x: jax.vmap(lambda row: jax.random.normal(key, row.shape), 1, 1)(x),
    "jit": lambda key, x: jax.jit(lambda x: x * jax.random.normal(key, x.shape))(x),
    "cond": lambda key, x: jax.lax.cond(
        jax.random.bernoulli(key), lambda: jax.random.normal(key, x.shape), lambda: jnp.zeros_like(x)
    ),
    "scan": lambda key, x: jax.lax.scan(
        lambda h, key: (h + jax.random.normal(key, h.shape), None), x, jax.random.split(key, 3)
    )[0],
    "scan_from_zeros": lambda key, x: jax.lax.scan(
        lambda h, key: (h + jax.random.normal(key, h.shape), None), jnp.zeros(x.shape), jax.random.split(key, 3)
    )[0],
    "legacy_rows": lambda key, x: jax.vmap(lambda k: jax.random.normal(jax.random.split(k)[0], (3,)))(
        jax.random.split(jax.random.PRNGKey(4), rows(x))
    ),
    "loop_of_row": lambda key, x: jax.vmap(first_large)(jax.random.split(key, rows(x))),
    "gamma": lambda key, x: jax.random.gamma(key, 2.0, x.shape),
    "gamma_of_rows": lambda key, x: jax.random.gamma(key, x[:, :1] + 2, x.shape),
    "beta_of_rows": lambda key, x: jax.random.beta(key, x + 2, 0.5),
    "poisson": lambda key, x: jax.random.poisson(key, 30.0, x.shape),
    "poisson_of_rows": lambda key, x: jax.random.poisson(key, x * 9 + 10),
    "binomial": lambda key, x: jax.random.binomial(key, 50, 0.4, x.shape),
    "multinomial": lambda key, x: jax.random.multinomial(key, 10.0, jnp.full((*x.shape, 2), 0.5))[..., 0],
    "dirichlet": lambda key, x: jax.random.dirichlet(key, jnp.ones(4), (rows(x),)),
    "permutation": lambda key, x: jax.random.permutation(key, x),
    "independent_permutation": lambda key, x: jax.random.permutation(key, x, independent=True),
    "permuted_rows": lambda key, x: jax.random.permutation(key, x, axis=1, independent=True),
    "permuted_columns": lambda key, x: x[:, jax.random.permutation(key, 3)],
    "choice": lambda key, x: jax.random.choice(key, 100, (rows(x),)),
    "choice_from_others": lambda key, x: jax.random.choice(key, jnp.arange(9.0), (rows(x),), p=jnp.full(9, 1 / 9)),
    "chosen_columns": lambda key, x: x[:, jax.random.choice(key, 3, (2,), replace=False)],
    "fori_loop": lambda key, x: jax.lax.fori_loop(
        0, 3, lambda i, h: h + jax.random.normal(jax.random.fold_in(key, i), h.shape), x
    ),
}


SLOW = {"beta_of_rows", "poisson_of_rows", "binomial", "dirichlet", "gamma_of_rows", "independent_permutation"}


@pytest.mark.daily(10)
@pytest.mark.parametrize("name", [name for name in DRAWS if name not in SLOW])
def test_replicas_draw_together_what_one_device_draws(strategies, name):
    check(strategies, DRAWS[name])


@pytest.mark.nightly
@pytest.mark.parametrize("name", DRAWS)
def test_so_do_other_numbers_of_them(strategies, name):
    check(strategies, DRAWS[name], numbers=(2, 3, 4, 8) if name in SLOW else (2, 4))


@pytest.mark.daily(2)
@pytest.mark.parametrize("size", [9, 14, 1], ids="{} rows".format)
def test_a_batch_that_does_not_divide_draws_them_on_fewer_replicas(strategies, size):
    check(strategies, lambda key, x: jax.random.normal(key, x.shape), X[:size])


def test_a_draw_that_only_looks_like_rows_is_the_same_on_all_replicas(strategies):
    """With 3 rows on each of 8 replicas, the noise of a 3x3 matrix is no noise of rows."""

    def both(key, x):
        first, second = jax.random.split(key)
        return jax.random.normal(first, x.shape), jax.random.normal(second, (3, 3)), jax.random.normal(key, (12,))

    check(strategies, both)


def test_draws_of_one_shape_on_one_line_are_told_apart(strategies):
    """The shapes are equal on 8 replicas; a loop comes by the same line for both."""

    def both(key, x):
        found = [jax.random.normal(k, s) for k, s in zip(jax.random.split(key), [x.shape, (3, 3)], strict=True)]
        one, all_rows = jax.random.normal(key, (1, 2)), jax.random.bits(key, (rows(x), 2))
        return (*found, one, all_rows)

    check(strategies, both)


def test_keys_for_two_rows_are_no_two_keys(strategies):
    def both(key, x):
        keys = jax.random.split(jax.random.fold_in(key, 1), rows(x))
        first, second = jax.random.split(key)
        return jax.vmap(jax.random.normal)(keys), jax.random.normal(first), jax.random.normal(second)

    check(strategies, both, X[:16])


def test_gradients_see_the_same_numbers_again(strategies):
    def loss(w, key, x):
        @jax.checkpoint
        def block(x, key):
            return jnp.tanh(x * w) * jax.random.bernoulli(key, 0.5, x.shape)

        for each in jax.random.split(key, 3):
            x = block(x, each)
        return (x * jax.random.normal(key, x.shape)).sum()

    expected = jax.grad(loss)(jnp.ones(3), KEY, X)
    for strategy in (strategies[3], strategies[8]):
        gradient = on_replicas(strategy, functools.partial(jax.grad(loss), jnp.ones(3)))
        np.testing.assert_allclose(gradient, expected, rtol=1e-5)


def test_a_key_of_the_replica_stays_its_own(strategies):
    def own(key, x):
        replica = rx.get_replica_context().replica_id_in_sync_group
        return jax.random.normal(jax.random.fold_in(key, replica), x.shape)

    drawn = np.split(on_replicas(strategies[2], own), 2)
    for replica, part in enumerate(drawn):
        np.testing.assert_array_equal(part, jax.random.normal(jax.random.fold_in(KEY, replica), part.shape))


def test_rows_may_be_assigned_where_they_are_combined_only(strategies):
    with strategies[2].scope():
        plain, mean = rx.Variable(0.0), rx.Variable(0.0, aggregation="mean")
    on_replicas(strategies[2], lambda key, x: (plain.assign(jax.random.normal(key)), None)[1])
    assert float(plain.value) == float(jax.random.normal(KEY))
    with pytest.raises(rx.errors.ReplicaDivergenceError):
        on_replicas(strategies[2], lambda key, x: (plain.assign(jax.random.normal(key, (rows(x),))[0]), None)[1])
    on_replicas(strategies[2], lambda key, x: (mean.assign(jax.random.normal(key, (rows(x),)).mean()), None)[1])
    assert float(mean.value) == pytest.approx(float(jax.random.normal(KEY, (ROWS,)).mean()), abs=1e-6)


def test_what_has_no_part_for_a_replica_is_refused(strategies):
    for shape in (lambda x: (rows(x), rows(x)), lambda x: (rows(x) + 1,)):
        with pytest.raises(ProgramError, match="in proportion"):
            on_replicas(strategies[2], lambda key, x, shape=shape: jax.random.normal(key, shape(x)).sum())

    def picky(key, x):
        return jax.random.normal(key, x.reshape(12, 3).shape)

    with pytest.raises(ProgramError, match="any number of rows"):
        on_replicas(strategies[2], picky)


def loop_of_replica(key, x):
    """Repeats until each of the replica's own rows has a number above 0.7."""

    def body(carry):
        key, found = carry
        key, mine = jax.random.split(key)
        return key, jnp.where(found > 0.7, found, jax.random.uniform(mine, found.shape))

    return jax.lax.while_loop(lambda carry: (carry[1] < 0.7).any(), body, (key, 0 * x[:, 0]))[1]


REFUSED = {
    "each replica repeats": loop_of_replica,
    "permutation of row numbers": lambda key, x: x[jax.random.permutation(key, rows(x))],
    "choice without replacement": lambda key, x: jax.random.choice(key, 100, (rows(x),), replace=False),
    "choice among rows": lambda key, x: jax.random.choice(key, x, (2,)),
    "choice among row": lambda key, x: x[jax.random.choice(key, rows(x), (rows(x),))],
    "choice among": lambda key, x: jax.random.choice(key, x, p=jax.nn.softmax(x[:, 0])),
    "split of an RBG key": lambda key, x: jax.random.split(jax.random.key(1, impl="rbg"), rows(x)),
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_mixes_rows_is_refused(strategies, said):
    with pytest.raises(ProgramError, match=said):
        on_replicas(strategies[8], REFUSED[said])


def test_rows_that_were_put_together_are_drawn_for_together(strategies):
    def contrast(key, x):
        return x[jax.random.permutation(key, rows(x))], jax.random.normal(key, x.shape)

    expected = jax.jit(contrast)(KEY, X)
    together = lambda key, x: contrast(key, rx.get_replica_context().all_gather(x, axis=0))  # noqa: E731
    for found, wanted in zip(on_replicas(strategies[3], together), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.usefixtures("eagerly")
@pytest.mark.parametrize("name", ["normal", "split", "permutation", "fori_loop"])
@pytest.mark.nightly
def test_op_by_op_they_are_the_same(strategies, name):
    expected = DRAWS[name](KEY, X)
    np.testing.assert_array_equal(on_replicas(strategies[8], DRAWS[name]), expected)
    weights = on_replicas(strategies[8], lambda key, x: jax.random.normal(key, (3, 3)))
    np.testing.assert_array_equal(weights, jax.random.normal(KEY, (3, 3)))


def test_the_choice_is_checked():
    with pytest.raises(ArgumentError, match="per_sample"):
        rx.MirroredStrategy(["cpu:0"], random_numbers="per_sample")
    assert rx.MirroredStrategy(["cpu:0"]).random_numbers == "per_replica"
