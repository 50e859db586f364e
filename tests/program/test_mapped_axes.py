"""Collectives over an axis of `jax.vmap` in `strategy.run`, against plain JAX on the whole batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 4, 3)).astype("float32")
W = RNG.normal(size=(3, 2)).astype("float32")


def through(fn, how):
    return {
        "direct": fn,
        "jit": jax.jit(fn),
        "checkpoint": jax.checkpoint(fn),
        "cond": lambda h: jax.lax.cond(jnp.sum(jnp.asarray(W)) > -100, fn, lambda h: h, h),
        "scan": lambda h: jax.lax.scan(lambda c, _: (fn(c), None), h, None, length=2)[0],
        "vmap": lambda h: jax.vmap(fn)(jnp.stack([h, 2 * h])).sum(0),
    }[how]


COLLECTIVES = {
    "psum": lambda h: h - jax.lax.psum(h, "t"),
    "pmean": lambda h: h - jax.lax.pmean(h, "t"),
    "pmean of a tree": lambda h: h - jax.lax.pmean({"a": (h, 2 * h)}, axis_name="t")["a"][1],
    "pmean as flax calls it": lambda h: h - jax.lax.pmean(h, axis_name="t", axis_index_groups=None),
    "pmax": lambda h: h / (1 + jnp.abs(jax.lax.stop_gradient(jax.lax.pmax(jax.lax.stop_gradient(h), "t")))),
    "pmin": lambda h: h + jax.lax.pmin(jax.lax.stop_gradient(h), "t"),
    "all_gather": lambda h: h + jnp.tanh(jax.lax.all_gather(h, "t")).sum(0),
    "all_gather, tiled": lambda h: h + jnp.tanh(jax.lax.all_gather(h, "t", tiled=True)).sum(),
    "size": lambda h: h / jax.lax.psum(1, "t"),
    "what is equal": lambda h: h + jax.lax.psum(jnp.asarray(W)[0], "t"),
    "whether": lambda h: h * jax.lax.psum(h > 0, "t"),
}


def loss(w, x, collective, how):
    of_token = through(COLLECTIVES[collective], how)
    tokens = jax.vmap(lambda t: jnp.tanh(of_token(t @ w)), axis_name="t")
    return jnp.sum(jnp.square(jax.vmap(tokens)(x))) / len(X)


@pytest.mark.daily(20)
@pytest.mark.parametrize("how", ["direct", "jit", "checkpoint", "cond", "scan", "vmap"])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_collective_over_an_axis_of_vmap_is_that_of_plain_jax(two, collective, how):
    gradient = jax.value_and_grad(loss)
    expected = jax.jit(lambda w, x: gradient(w, x, collective, how))(W, X)
    [batch] = two.distribute_dataset([X])
    found = two.run(lambda w, x: gradient(w, x, collective, how), args=(two.replicate(jnp.asarray(W)), batch))
    np.testing.assert_allclose(two.reduce("sum", found[0], axis=None), expected[0], rtol=1e-5)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "of_row",
    [
        lambda w, row: row * jax.lax.psum(w.sum(), "rows"),
        lambda w, row: row + jax.grad(lambda row: jax.lax.all_gather(row, "rows").sum())(row),
    ],
    ids=["a value", "a derivative"],
)
def test_what_is_no_rows_own_counts_once_for_each_row(two, of_row):
    def of_rows(w, x):
        return jax.vmap(lambda row: of_row(w, row), axis_name="rows")(x)

    [batch] = two.distribute_dataset([X])
    found = two.run(of_rows, args=(two.replicate(jnp.asarray(W)), batch))
    halves = [of_rows(jnp.asarray(W), half) for half in np.split(X, 2)]
    np.testing.assert_allclose(two.gather(found, axis=0), np.concatenate(halves), rtol=1e-6)


@pytest.mark.parametrize("name", ["psum", "pmean", "pmax", "pmin"])
def test_rows_and_replicas_together_are_all_rows(mirrored, name):
    three = mirrored(3)
    expected = jax.vmap(lambda x: x + getattr(jax.lax, name)(x, "rows"), axis_name="rows")(X)
    [batch] = three.distribute_dataset([X])

    axes = ("rows", "replica")

    def step(x):
        return jax.vmap(lambda x: x + getattr(jax.lax, name)(x, axes, axis_index_groups=None), axis_name="rows")(x)

    found = three.gather(three.run(step, args=(batch,)), axis=0)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_statistics_of_all_rows_have_the_gradient_of_one_device(mirrored):
    two = mirrored(2)

    def of(axes, divide):
        def loss(w, x):
            def row(x):
                h = x @ w
                return jnp.sum(jnp.square(jnp.tanh(h - jax.lax.pmean(h, axes))))

            return divide(jax.vmap(row, axis_name="rows")(x))

        return jax.grad(loss)

    expected = of("rows", jnp.mean)(jnp.asarray(W), X)
    [batch] = two.distribute_dataset([X])
    found = two.run(of(("rows", "replica"), rx.compute_average_loss), args=(two.replicate(jnp.asarray(W)), batch))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_an_axis_that_is_not_there_is_still_named(two):
    [batch] = two.distribute_dataset([X])
    with pytest.raises(rx.errors.ProgramError, match="'batch'"):
        two.run(lambda x: jax.vmap(lambda x: jax.lax.pmean(x, "batch"), axis_name="rows")(x), args=(batch,))


# A sum over the replicas of what is equal on all of them.


def doubled(w, x):
    return jax.grad(lambda w: rx.compute_average_loss(jnp.square(x @ w).sum((1, 2))))(w)


SUMMED_TWICE = {
    "psum": lambda g: jax.lax.psum(g, "replica"),
    "of a tree": lambda g: jax.lax.psum({"g": g}, ("replica",))["g"],
    "in jit": jax.jit(lambda g: jax.lax.psum(g, "replica")),
    "in cond": lambda g: jax.lax.cond(g.sum() > 0, lambda: jax.lax.psum(g, "replica"), lambda: g),
    "twice": lambda g: jax.lax.psum(jax.lax.psum(jax.lax.pcast(g, "replica", to="varying"), "replica"), "replica"),
}


@pytest.mark.parametrize("how", SUMMED_TWICE)
def test_a_sum_of_what_is_summed_already_is_refused(two, how):
    [batch] = two.distribute_dataset([X])
    with pytest.raises(rx.errors.ReduceError, match="2 times the value"):
        two.run(lambda w, x: SUMMED_TWICE[how](doubled(w, x)), args=(two.replicate(jnp.asarray(W)), batch))


def test_sums_that_count_are_not_refused(two):
    def step(w, x):
        count = jax.lax.psum(1, "replica") * jax.lax.psum(jnp.sum(x > 0), "replica")
        return jax.lax.pmean(w, "replica"), count, jax.lax.psum(jax.lax.axis_index("replica"), "replica")

    [batch] = two.distribute_dataset([X])
    w, count, index = two.run(step, args=(two.replicate(jnp.asarray(W)), batch))
    np.testing.assert_array_equal(w, W)
    assert (int(count), int(index)) == (2 * int((X > 0).sum()), 1)


# Gradients of single rows.


def error_of_row(w, row):
    return jnp.sum(jnp.square(jnp.tanh(row @ w)))


def norms(w, x):
    each = jax.vmap(jax.grad(error_of_row), in_axes=(None, 0))(w, x)
    return jnp.sum(jnp.square(each), axis=(1, 2))


def norms_of_captured(w, x):
    return jax.vmap(lambda row: jnp.sum(jnp.square(jax.value_and_grad(lambda w: error_of_row(w, row))(w)[1])))(x)


def adapted(w, x):
    return jax.vmap(lambda row: error_of_row(w - 0.1 * jax.grad(error_of_row)(w, row), -row))(x)


OF_ROWS = {"norms": norms, "captured": norms_of_captured, "adapted": adapted}


@pytest.mark.daily(2)
@pytest.mark.parametrize("strategy", [2, 3])
@pytest.mark.parametrize("what", OF_ROWS)
def test_a_gradient_of_each_row_inside_a_loss_is_that_of_one_device(mirrored, what, strategy):
    def loss(average):
        return jax.value_and_grad(lambda w, x: average(OF_ROWS[what](w, x)))

    strategy = mirrored(strategy)
    expected = jax.jit(loss(jnp.mean))(jnp.asarray(W), X[:, 0])
    [batch] = strategy.distribute_dataset([X[:, 0]])
    found = strategy.run(
        lambda w, x: loss(rx.compute_average_loss)(w, x), args=(strategy.replicate(jnp.asarray(W)), batch)
    )
    np.testing.assert_allclose(strategy.reduce("sum", found[0], axis=None), expected[0], rtol=1e-5)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-5, atol=1e-6)


VALUE_AND_GRAD = jax.value_and_grad(error_of_row)
#: Made once for all steps, as a script does it.
MADE_BEFORE = {
    "grad": jax.vmap(jax.grad(error_of_row), in_axes=(None, 0)),
    "value_and_grad": jax.vmap(lambda w, row: VALUE_AND_GRAD(w, row)[1], (None, 0)),
    "jacrev": jax.vmap(jax.jacrev(lambda w, row: jnp.tanh(row @ w)), in_axes=(None, 0)),
}


@pytest.mark.parametrize("what", MADE_BEFORE)
def test_gradients_of_rows_that_were_made_before_the_step_are_no_sums(two, what):
    [batch] = two.distribute_dataset([X[:, 0]])
    found = two.run(MADE_BEFORE[what], args=(two.replicate(jnp.asarray(W)), batch))
    expected = MADE_BEFORE[what](jnp.asarray(W), X[:, 0])
    np.testing.assert_allclose(two.gather(found, axis=0), expected, rtol=1e-5, atol=1e-6)


def test_a_gradient_of_the_batch_under_vmap_is_still_that_of_all_replicas(two):
    def square(x, w):
        g = jax.grad(lambda w: jnp.sum(jnp.square(x[:, 0] @ w)))
        models = jax.vmap(g)(jnp.stack([w, 2 * w]))
        return models, jax.vmap(lambda rate: w - rate * g(w))(jnp.array([0.1, 0.2]))

    expected = square(X, jnp.asarray(W))
    [batch] = two.distribute_dataset([X])
    found = two.run(square, args=(batch, two.replicate(jnp.asarray(W))))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
