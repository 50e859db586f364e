"""`jax.grad` in `strategy.run` through rules, solvers and branches, against plain JAX on the whole batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.ode import odeint

import replicax as rx

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(12, 8)).astype("float32"), RNG.normal(size=(12, 3)).astype("float32")
W = {
    "w": (RNG.normal(size=(8, 8)) / 3).astype("float32"),
    "v": (RNG.normal(size=(8, 3)) / 3).astype("float32"),
    "t": np.float32(0.5),
}


def path(p, x, until=0.5):
    return odeint(lambda h, t: jnp.tanh(h @ p["w"]) * jnp.cos(t), x, jnp.stack([0.0, until]), rtol=1e-6, atol=1e-6)[-1]


def regular(p):
    return p["w"] @ p["w"].T + 2 * jnp.eye(8)


def iterated(f, start):
    return jax.lax.fori_loop(0, 40, lambda i, h: h - f(h), start)


def solved(g, y):
    return jnp.linalg.solve(jax.jacobian(g)(jnp.zeros_like(y)), y)


def ruled(forward, backward):
    rule = jax.custom_vjp(lambda x, w: x @ w)
    rule.defvjp(forward, backward)
    return rule


product = ruled(lambda x, w: (x @ w, (x, w)), lambda s, g: (g @ s[1].T, s[0].T @ g))
constant = ruled(lambda x, w: (x @ w, x.shape), lambda shape, g: (jnp.ones(shape), jnp.ones((8, 8))))


def walked(slope, x):
    """One step of what `odeint` does."""
    f, captured = jax.closure_convert(slope, x, 1.0)

    def forward(x, *captured):
        return x + f(x, 0.5, *captured), (x, *captured)

    def backward(saved, g):
        of = lambda *operands: jax.vjp(lambda x, *captured: f(x, 0.5, *captured), *operands)[1](g)  # noqa: E731
        converted, more = jax.closure_convert(of, *saved)
        of_x, *of_captured = converted(*saved, *more)
        return g + of_x, *of_captured

    rule = jax.custom_vjp(lambda x, *captured: forward(x, *captured)[0])
    rule.defvjp(forward, backward)
    return rule(x, *captured)


def row_by_cond(p, r):
    return jax.lax.cond(r[0] > 0, lambda: jnp.tanh(r @ p["w"]), lambda: jnp.sin(r @ p["w"] @ p["w"]))


FORMS = {
    "odeint": path,
    "odeint to a weight": lambda p, x: path(p, x, p["t"]),
    "odeint in rows": lambda p, x: jax.vmap(lambda r: path(p, r))(x),
    "closure_convert": lambda p, x: walked(lambda h, t: jnp.tanh(h @ p["w"]) * t, x),
    "closure_convert of a loop": lambda p, x: walked(
        lambda h, t: jax.lax.scan(lambda h, _: (jnp.tanh(h @ p["w"]) * t, None), h, None, length=2)[0], x
    ),
    "cg": lambda p, x: jax.scipy.sparse.linalg.cg(lambda v: v @ regular(p), x, tol=1e-8)[0],
    "cg in rows": lambda p, x: jax.vmap(lambda r: jax.scipy.sparse.linalg.cg(lambda v: regular(p) @ v, r, tol=1e-7)[0])(
        x
    ),
    "custom_linear_solve": lambda p, x: jax.lax.custom_linear_solve(
        lambda v: v @ regular(p), x, lambda _, b: jnp.linalg.solve(regular(p), b.T).T, symmetric=True
    ),
    "custom_linear_solve of weights": lambda p, x: (
        x
        * jax.lax.custom_linear_solve(
            lambda v: v @ regular(p), p["v"][:, 0], lambda _, b: jnp.linalg.solve(regular(p), b.T).T, symmetric=True
        )
    ),
    "custom_root": lambda p, x: jax.lax.custom_root(
        lambda h: h - 0.3 * jnp.tanh(h @ p["w"]) - x,
        jnp.zeros_like(x),
        iterated,
        lambda g, y: iterated(lambda h: g(h) - y, y),
    ),
    "custom_root in rows": lambda p, x: jax.vmap(
        lambda r: jax.lax.custom_root(lambda h: h - 0.3 * jnp.tanh(h @ p["w"]) - r, jnp.zeros(8), iterated, solved)
    )(x),
    "gmres in rows": lambda p, x: jax.vmap(
        lambda r: jax.scipy.sparse.linalg.gmres(lambda v: regular(p) @ v, r, tol=1e-7)[0]
    )(x),
    "bicgstab in rows": lambda p, x: jax.vmap(
        lambda r: jax.scipy.sparse.linalg.bicgstab(lambda v: regular(p) @ v, r, tol=1e-7)[0]
    )(x),
    "custom_vjp": lambda p, x: product(x, p["w"]),
    "custom_vjp in a loop": lambda p, x: jax.lax.scan(
        lambda h, _: (jnp.tanh(product(h, p["w"])), None), x, None, length=3
    )[0],
    "custom_vjp with constants": lambda p, x: constant(x @ p["w"], p["w"]),
    "a branch for each row": lambda p, x: jax.lax.map(lambda r: row_by_cond(p, r), x),
    "a branch for the rows": lambda p, x: jax.lax.cond(
        jnp.sum(x) > 0.5, lambda: jnp.tanh(x @ p["w"]), lambda: jnp.sin(x @ p["w"])
    ),
}
# With the branch of the whole batch the plain library does something else than replicas with their own.
OWN_BRANCH = "a branch for the rows"


def loss(p, x, y, form):
    return jnp.sum(jnp.square(FORMS[form](p, x) @ p["v"] - y)) / len(X)


def expected(form, rows=12):
    whole = jax.jit(jax.value_and_grad(lambda p: loss(p, X[:rows], Y[:rows], form)))
    if form != OWN_BRANCH or rows == 1:
        return whole(W)
    parts = [jax.value_and_grad(loss)(W, X[i : i + 6], Y[i : i + 6], form) for i in (0, 6)]
    return jax.tree.map(jnp.add, *parts)


def equal(ours, others):
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(others), strict=True):
        np.testing.assert_allclose(a, b, rtol=3e-5, atol=1e-5)


@pytest.mark.daily(11)
@pytest.mark.parametrize("weights", ["argument", "captured"])
@pytest.mark.parametrize("form", FORMS)
def test_a_gradient_is_that_of_plain_jax(two, form, weights):
    held = two.replicate(W)

    def step(p, batch):
        value, gradients = jax.value_and_grad(loss)(p, *batch, form)
        return value, gradients

    [batch] = two.distribute_dataset([(X, Y)])
    if weights == "argument":
        value, gradients = two.run(step, args=(held, batch))
    elif form in ("custom_vjp in a loop", "a branch for each row") and jax.__version_info__ < (0, 12):
        with pytest.raises(rx.errors.ProgramError, match=r"Pass it: strategy\.run\(step, args=\(array, batch\)\)"):
            two.run(lambda batch: step(held, batch), args=(batch,))
        return
    else:
        value, gradients = two.run(lambda batch: step(held, batch), args=(batch,))
    assert not any(isinstance(leaf, rx.PerReplica) for leaf in jax.tree.leaves(gradients))
    equal((two.reduce("sum", value, axis=None), gradients), expected(form))


# One replica has all rows of a batch that cannot be cut evenly. What JAX says of types is the same there.
@pytest.mark.daily(2)
@pytest.mark.parametrize(
    "form", ["closure_convert of a loop", "cg in rows", "custom_root", "custom_vjp with constants"]
)
def test_a_gradient_on_one_replica_is_that_of_plain_jax(two, form):
    def step(p, batch):
        def of(p):
            return loss(p, *batch, form), {"norm": jnp.sum(jnp.square(p["w"])), "rows": jnp.sum(batch[0])}

        return jax.value_and_grad(of, has_aux=True)(p)

    [batch] = two.distribute_dataset([(X[:1], Y[:1])])
    (value, aux), gradients = two.run(step, args=(two.replicate(W), batch))
    assert isinstance(value, rx.PerReplica)
    assert isinstance(aux["rows"], rx.PerReplica)
    np.testing.assert_allclose(aux["norm"], np.sum(np.square(W["w"])), rtol=1e-5)
    equal((two.reduce("sum", value, axis=None), gradients), expected(form, 1))


@pytest.mark.daily(2)
@pytest.mark.parametrize("form", ["closure_convert", "cg in rows", "custom_root"])
def test_a_derivative_that_is_not_jax_grads_is_that_of_plain_jax(two, form):
    def step(p, x, y):
        value, back = jax.vjp(lambda p: loss(p, x, y, form), p)
        return back(jnp.ones_like(value))[0], jax.grad(lambda x: loss(p, x, y, form))(x)

    [batch] = two.distribute_dataset([(X, Y)])
    if form == "custom_root" and jax.__version_info__ >= (0, 12):
        with pytest.raises(rx.errors.ProgramError, match="make the values that go in each replica's own first"):
            two.run(step, args=(two.replicate(W), *batch))
        return
    of_weights, of_rows = two.run(step, args=(two.replicate(W), *batch))
    equal((of_weights, two.gather(of_rows, axis=0)), jax.grad(lambda p, x: loss(p, x, Y, form), argnums=(0, 1))(W, X))


# A constant for a weight would be counted once per replica there.
@pytest.mark.daily(6)
@pytest.mark.parametrize("form", [form for form in FORMS if form != "custom_vjp with constants"])
def test_a_gradient_of_variables_is_that_of_plain_jax(two, form):
    with two.scope():
        variables = {name: rx.Variable(value) for name, value in W.items()}

    def step(batch):
        def own():
            return loss({name: v.value for name, v in variables.items()}, *batch, form)

        value, gradients = rx.value_and_grad(own, list(variables.values()))()
        return value, [0.0 if g is None else g for g in gradients]

    [batch] = two.distribute_dataset([(X, Y)])
    value, gradients = two.run(step, args=(batch,))
    equal((two.reduce("sum", value, axis=None), dict(zip(variables, gradients, strict=True))), expected(form))


# A gradient inside of a loss in which each replica differentiates for itself.


def squares(p, x, y):
    return jnp.sum(jnp.square(jnp.tanh(x @ p["w"]) @ p["v"] - y)) / len(X)


def of_the_batch(p, x, y, scaled):
    inner = jax.grad(squares)(p, x, y)
    return squares(p, x, y) + scaled(sum(jnp.sum(jnp.square(g)) for g in jax.tree.leaves(inner)))


def of_the_input(p, x, y, scaled):
    slopes = jax.grad(lambda x: jnp.sum(jnp.tanh(x @ p["w"]) @ p["v"]))(x)
    return squares(p, x, y) + jnp.sum(jnp.square(slopes)) / len(X)


def adapted(p, x, y, scaled):
    inner = jax.grad(squares)(p, x, y)
    return squares(jax.tree.map(lambda a, g: a - 0.1 * g, p, inner), x, -y)


def of_a_penalty(p, x, y, scaled):
    inner = jax.grad(lambda p: jnp.sum(jnp.sin(p["w"])))(p)
    return squares(p, x, y) + scaled(jnp.sum(jnp.square(inner["w"])))


INNER = [of_the_batch, of_the_input, adapted, of_a_penalty]


@pytest.mark.daily(4)
@pytest.mark.parametrize("how", ["variables", "arrays", "arrays, each for itself"])
@pytest.mark.parametrize("inner", INNER, ids=lambda inner: inner.__name__)
def test_a_gradient_inside_a_loss_is_that_of_plain_jax(two, inner, how):
    with two.scope():
        variables = {name: rx.Variable(value) for name, value in W.items()}

    def of(p, x, y):
        found = inner(p, x, y, rx.scale_regularization_loss)
        # A solver, because of which each replica differentiates for itself.
        return found + jnp.sum(FORMS["cg"](p, x)) / len(X) if how == "arrays, each for itself" else found

    def step(p, batch):
        if how != "variables":
            return jax.value_and_grad(of)(p, *batch)
        loss = lambda: of({name: v.value for name, v in variables.items()}, *batch)  # noqa: E731
        value, gradients = rx.value_and_grad(loss, list(variables.values()))()
        return value, {name: jnp.zeros(()) if g is None else g for name, g in zip(variables, gradients, strict=True)}

    def plain(p):
        found = inner(p, X, Y, lambda penalty: penalty)
        return found + jnp.sum(FORMS["cg"](p, X)) / len(X) if how == "arrays, each for itself" else found

    [batch] = two.distribute_dataset([(X, Y)])
    value, gradients = two.run(step, args=(two.replicate(W), batch))
    equal((two.reduce("sum", value, axis=None), gradients), jax.value_and_grad(plain)(W))


def test_auxiliary_values_of_weights_alone_stay_equal(two):
    def step(p, batch):
        def of(p):
            return loss(p, *batch, "cg"), {"norm": jnp.sum(jnp.square(p["w"])), "rows": jnp.sum(batch[0])}

        (_, aux), _ = jax.value_and_grad(of, has_aux=True)(p)
        (gradients, _) = jax.grad(of, has_aux=True)(p)
        return aux, gradients

    [batch] = two.distribute_dataset([(X, Y)])
    aux, gradients = two.run(step, args=(two.replicate(W), batch))
    np.testing.assert_allclose(aux["norm"], np.sum(np.square(W["w"])), rtol=1e-5)
    assert isinstance(aux["rows"], rx.PerReplica)
    equal(gradients, expected("cg")[1])


@pytest.mark.parametrize("kind", ["reduced", "of weights alone"])
def test_a_loss_that_is_one_number_for_all_counts_once(two, kind):
    def of(p, x, y):
        own = loss(p, x, y, "cg")
        if kind == "reduced":
            return jax.lax.psum(own, "replica")
        return jnp.sum(jnp.tanh(p["w"]))

    def step(p, batch):
        # The rows' solver makes each replica differentiate for itself.
        return jax.grad(lambda p: of(p, *batch) + 0 * jax.lax.pmean(loss(p, *batch, "cg"), "replica"))(p)

    [batch] = two.distribute_dataset([(X, Y)])
    gradients = two.run(step, args=(two.replicate(W), batch))
    plain = expected("cg")[1] if kind == "reduced" else jax.grad(lambda p: of(p, X, Y))(W)
    equal(gradients, plain)


# Gradients that were made before the step, as scripts do it at their top.


def error(w, x, y):
    return jnp.sum(jnp.square(jnp.tanh(x @ w) - y)) / len(X)


def with_rules(forward, backward):
    function = jax.custom_vjp(error)
    function.defvjp(forward, backward)
    return function


def walked_to(w, x, y):
    return jax.lax.scan(lambda w, _: (w - 0.1 * GRAD(w, x, y), None), w, None, length=3)[0]


def norm(tree):
    return sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree))


GRAD, VALUE_AND_GRAD = jax.grad(error), jax.value_and_grad(error)
OF_ROWS_AND_WEIGHTS = jax.grad(lambda x, w, y: error(w, x, y), argnums=(0, 1))
WITH_AUX = jax.grad(lambda w, x, y: (error(w, x, y), {"norm": norm(w)}), has_aux=True)
SECOND = jax.grad(lambda w, x, y: norm(GRAD(w, x, y)))
THIRD = jax.grad(lambda w, x, y: norm(SECOND(w, x, y)))
COMPILED, REMATERIALIZED = jax.jit(GRAD), jax.checkpoint(GRAD)
HESSIANS = [jax.hessian(error), jax.jacrev(GRAD), jax.jacfwd(GRAD), jax.jacrev(jax.jacrev(error))]
OF_A_PENALTY, OF_MOMENTS = jax.grad(lambda w: norm(jnp.sin(w))), jax.jacrev(lambda w: jnp.sin(w) * w[0])
COMPILED_PENALTY, COMPILED_OF_ROWS = jax.jit(OF_A_PENALTY), jax.jit(jax.grad(lambda x, w: jnp.sum(x @ w)))
OF_NETWORK = jax.jacrev(lambda w, x: jnp.tanh(x @ w))
SAVED = with_rules(lambda *args: (error(*args), OF_ALL(*args)), lambda saved, g: tuple(g * each for each in saved))
LATE = with_rules(lambda *args: (error(*args), args), lambda args, g: tuple(g * each for each in OF_ALL(*args)))
PULLED = with_rules(lambda *args: jax.vjp(error, *args), lambda pullback, g: pullback(g))
OF_ALL, OF_PULLED = jax.grad(error, argnums=(0, 1, 2)), jax.grad(PULLED)

#: Losses of rows, weights and what scales a part that is one number for all replicas.
MADE_BEFORE = {
    "grad": lambda w, x, y, scaled: norm(GRAD(w, x, y)),
    "adapted": lambda w, x, y, scaled: error(w - 0.1 * GRAD(w, x, y), x, -y),
    "value_and_grad": lambda w, x, y, scaled: VALUE_AND_GRAD(w, x, y)[0] + scaled(norm(VALUE_AND_GRAD(w, x, y)[1])),
    "has_aux": lambda w, x, y, scaled: scaled(norm(WITH_AUX(w, x, y)[0]) + WITH_AUX(w, x, y)[1]["norm"]),
    "of rows": lambda w, x, y, scaled: norm(OF_ROWS_AND_WEIGHTS(x, w, y)[0]),
    "of weights": lambda w, x, y, scaled: norm(OF_ROWS_AND_WEIGHTS(x, w, y)[1]),
    "second": lambda w, x, y, scaled: norm(SECOND(w, x, y)),
    "third": lambda w, x, y, scaled: norm(THIRD(w, x, y)),
    "jit": lambda w, x, y, scaled: norm(COMPILED(w, x, y)),
    "checkpoint": lambda w, x, y, scaled: norm(REMATERIALIZED(w, x, y)),
    "in checkpoint": lambda w, x, y, scaled: jax.checkpoint(lambda w: norm(GRAD(w, x, y)))(w),
    "scan": lambda w, x, y, scaled: scaled(norm(walked_to(w, x, y))),
    "cond": lambda w, x, y, scaled: jax.lax.cond(w[0] > 0, lambda: norm(GRAD(w, x, y)), lambda: norm(GRAD(-w, x, y))),
    "hessians": lambda w, x, y, scaled: norm([made(w, x, y) for made in HESSIANS]),
    "linearize": lambda w, x, y, scaled: norm(jax.linearize(lambda w: GRAD(w, x, y), w)[1](w)),
    "vjp": lambda w, x, y, scaled: norm(jax.vjp(lambda w: jnp.square(x @ w - y), w)[1](y)),
    "vjp of grad": lambda w, x, y, scaled: norm(jax.vjp(lambda w: GRAD(w, x, y), w)[1](jnp.ones(8))),
    "penalty": lambda w, x, y, scaled: norm(OF_A_PENALTY(w)),
    "moments": lambda w, x, y, scaled: norm(OF_MOMENTS(w)),
    "penalty under jit": lambda w, x, y, scaled: norm(COMPILED_PENALTY(w)),
    "of rows under jit": lambda w, x, y, scaled: norm(jnp.sin(COMPILED_OF_ROWS(x, w)) * y[:, None]),
    "Jacobian of rows": lambda w, x, y, scaled: norm(OF_NETWORK(w, x)),
    "rule that saves it": lambda w, x, y, scaled: SAVED(w, x, y),
    "rule that makes it late": lambda w, x, y, scaled: LATE(w, x, y),
    "rule of vjp": lambda w, x, y, scaled: PULLED(w, x, y),
    "of a rule": lambda w, x, y, scaled: norm(OF_PULLED(w, x, y)),
}


@pytest.mark.parametrize(("replicas", "rows"), [(2, 12), (3, 11), (1, 12)])
@pytest.mark.parametrize("part", range(4))
@pytest.mark.daily(4)
def test_a_gradient_inside_a_loss_may_have_been_made_before_the_step(mirrored, replicas, rows, part):
    strategy, w, x, y = mirrored(replicas), W["v"][:, 0], X[:rows], Y[:rows, 0]
    made = dict(list(MADE_BEFORE.items())[part::4])  # All in one step would be many decisions, which JAX traces anew.
    with strategy.scope():
        variable = rx.Variable(w)

    def step(x, y):
        def of(loss):
            return rx.grad(lambda: loss(variable.value, x, y, rx.scale_regularization_loss), variable)()

        return {name: of(loss) for name, loss in made.items()}

    [batch] = strategy.distribute_dataset([(x, y)])
    found = strategy.run(step, args=batch)
    for name, loss in made.items():
        plain = jax.jit(jax.grad(lambda w, loss=loss: loss(w, x, y, lambda part: part)))(w)
        # JAX 0.12 rounds third derivatives in another order.
        rtol = 1e-4 if name == "third" and jax.__version_info__ >= (0, 12) else 3e-5
        np.testing.assert_allclose(found[name], plain, rtol=rtol, atol=1e-5, err_msg=name)


def test_a_gradient_of_weights_that_was_made_before_the_step_is_summed_in_a_loss(two):
    with two.scope():
        variable = rx.Variable(W["v"][:, 0])
    [batch] = two.distribute_dataset([(X, Y[:, 0])])
    loss = lambda x, y: norm(GRAD(variable.value, x, y))  # noqa: E731
    gradient = two.run(lambda x, y: rx.grad(loss, variable)(x, y), args=batch)
    np.testing.assert_allclose(gradient, jax.grad(lambda w: norm(GRAD(w, X, Y[:, 0])))(W["v"][:, 0]), rtol=1e-5)


DEAR = ("hessians", "third", "second", "scan", "has_aux", "grad", "value_and_grad")  # operation by operation


@pytest.mark.daily(6)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] if name in DEAR else []) for name in MADE_BEFORE]
)
def test_operation_by_operation_a_gradient_inside_a_loss_is_that_of_plain_jax_or_refused(two, eagerly, name):
    loss = MADE_BEFORE[name]
    with two.scope():
        variable = rx.Variable(W["v"][:, 0])
    [batch] = two.distribute_dataset([(X, Y[:, 0])])

    def step(x, y):
        return rx.grad(lambda: loss(variable.value, x, y, rx.scale_regularization_loss), variable)()

    if name in ("checkpoint", "in checkpoint", "cond"):
        with pytest.raises(rx.errors.ProgramError, match="run_eagerly"):
            two.run(step, args=batch)
        return
    plain = jax.jit(jax.grad(lambda w: loss(w, X, Y[:, 0], lambda part: part)))(W["v"][:, 0])
    np.testing.assert_allclose(two.run(step, args=batch), plain, rtol=3e-5, atol=1e-5)
