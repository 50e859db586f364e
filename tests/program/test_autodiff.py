from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ArgumentError, ReduceError

# Replica r has x = r + 1, the variable is 3.


@pytest.fixture
def w(two):
    with two.scope():
        return rx.Variable(3.0, name="w")


@pytest.fixture
def x(two, per_replica):
    return per_replica(two, 1.0, 2.0)


def numbers(nest):
    """The nest with each array as a number, and each per-replica value as a list of numbers."""
    return jax.tree.map(
        lambda leaf: [float(x) for x in leaf.values] if isinstance(leaf, rx.PerReplica) else float(leaf),
        nest,
        is_leaf=lambda leaf: isinstance(leaf, rx.PerReplica),
    )


# Aggregation over replicas.


@pytest.mark.daily(3)
@pytest.mark.parametrize(("aggregation", "gradient"), [("sum", 18.0), ("mean", 9.0), (None, [6.0, 12.0])])
def test_gradients_are_aggregated_over_replicas(two, w, x, either_way, aggregation, gradient):
    def step(x):
        return rx.value_and_grad(lambda: w * w * x, [w], aggregation=aggregation)()

    loss, (result,) = two.run(step, args=(x,))
    assert numbers(loss) == [9.0, 18.0]
    assert numbers(result) == gradient


@pytest.mark.parametrize(("op", "gradient"), [("sum", 18.0), ("mean", 9.0)])
@pytest.mark.parametrize("aggregation", ["sum", "mean", rx.ReduceOp.SUM])
def test_a_loss_that_is_reduced_already_counts_once(two, w, x, op, gradient, aggregation):
    def step(x):
        def loss_fn():
            return rx.get_replica_context().all_reduce(op, w * w * x)

        return rx.value_and_grad(loss_fn, [w], aggregation=aggregation)()

    loss, (result,) = two.run(step, args=(x,))
    assert numbers([loss, result]) == [9.0 * 3 if op == "sum" else 9.0 * 1.5, gradient]


def test_a_loss_that_every_replica_computes_alike_counts_on_each(two, w):
    step = lambda: rx.grad(lambda: w * w, w)()  # noqa: E731
    assert numbers(two.run(step)) == 12.0
    assert numbers(two.run(lambda: rx.grad(lambda: rx.scale_regularization_loss(w * w), w)())) == 6.0


def test_plain_jax_gradients_of_an_argument_give_the_same_sum(two, x):
    def step(w, x):
        return jax.grad(lambda w: w * w * x)(w)

    assert numbers(two.run(step, args=(3.0, x))) == 18.0


def test_reduced_gradients_may_not_be_summed_again(two, w, x):
    def step(x):
        gradient = rx.grad(lambda: w * w * x, w)()
        return rx.get_replica_context().all_reduce("sum", gradient)

    with pytest.raises(ReduceError, match="value_and_grad"):
        two.run(step, args=(x,))


def test_nan_gradients_reach_every_replica(two, w, per_replica):
    step = lambda x: rx.grad(lambda: w * w * x, w)()  # noqa: E731
    assert np.isnan(numbers(two.run(step, args=(per_replica(two, 1.0, np.nan),))))


# Outside of replicas.


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("aggregation", ["sum", "mean", None])
@pytest.mark.parametrize("scoped", [False, True])
def test_outside_of_run_the_gradient_is_that_of_the_loss(two, compiled, aggregation, scoped):
    def differentiate(x):
        return rx.value_and_grad(lambda: v * v * x, [v], aggregation=aggregation)()

    call = rx.function(differentiate) if compiled else differentiate
    if scoped:
        with two.scope():
            v = rx.Variable(3.0)
            loss, (gradient,) = call(2.0)
    else:
        v = rx.Variable(3.0)
        loss, (gradient,) = call(2.0)
    assert numbers([loss, gradient]) == [18.0, 12.0]


def test_cross_replica_code_differentiates_through_run(two, w, x):
    @rx.function
    def step(x):
        def loss_fn():
            return two.reduce("sum", two.run(lambda x: w * w * x, args=(x,)), axis=None)

        return rx.value_and_grad(loss_fn, [w])()

    loss, (gradient,) = step(x)
    assert numbers([loss, gradient]) == [27.0, 18.0]


# What the loss may look like.


def test_arguments_and_aux_pass_through(two, w, x):
    def step(x):
        def loss_fn(factor, *, shift):
            return w * x * factor + shift, {"x": x, "name": "aux", "equal": w * 0 + 7.0}

        return rx.value_and_grad(loss_fn, [w], has_aux=True)(2.0, shift=1.0)

    (loss, aux), (gradient,) = two.run(step, args=(x,))
    assert numbers([loss, gradient]) == [[7.0, 13.0], 6.0]
    assert numbers(aux.pop("x")) == [1.0, 2.0]
    assert numbers(aux.pop("equal")) in (7.0, [7.0, 7.0])
    assert aux == {"name": "aux"}


def test_grad_gives_gradients_and_aux():
    v = rx.Variable(3.0)
    assert numbers(rx.grad(lambda: v * v, v)()) == 6.0
    assert numbers(rx.grad(lambda: (v * v, v + 1), v, has_aux=True)()) == (6.0, 4.0)


def test_gradients_nest_like_the_variables(two):
    with two.scope():
        variables = {"dense": [rx.Variable(jnp.ones((2, 3))), rx.Variable(jnp.zeros(3))], "scale": rx.Variable(2.0)}

    def step():
        def loss_fn():
            kernel, bias = variables["dense"]
            return ((jnp.ones(2) @ kernel + bias) * variables["scale"]).sum()

        return rx.grad(loss_fn, variables)()

    gradients = two.run(step)
    np.testing.assert_array_equal(gradients["dense"][0], np.full((2, 3), 4.0))
    np.testing.assert_array_equal(gradients["dense"][1], np.full(3, 4.0))
    assert numbers(gradients["scale"]) == 12.0


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_gradient_has_its_variables_dtype(two, dtype):
    with two.scope():
        v = rx.Variable([1.0, 2.0], dtype=dtype)
    step = lambda x: rx.grad(lambda: (v.value.astype("float32") ** 2 * x).sum(), v)()  # noqa: E731
    gradient = two.run(step, args=(1.0,))
    assert gradient.dtype == dtype
    np.testing.assert_array_equal(gradient.astype("float32"), [4.0, 8.0])


@pytest.mark.parametrize("place", ["run", "function", "python"])
def test_a_variable_that_the_loss_assigns_keeps_the_new_value(two, place):
    with two.scope():
        v = rx.Variable(3.0)
        calls = rx.Variable(0.0)

    def step():
        def loss_fn():
            calls.assign_add(1.0)
            return v * v * calls

        return rx.grad(loss_fn, v)(), calls.value

    call = {"run": lambda: two.run(step), "function": rx.function(step), "python": step}[place]
    replicas = 2 if place == "run" else 1
    assert numbers(call()) == (6.0 * replicas, 1.0)
    assert numbers(call()) == (12.0 * replicas, 2.0)
    assert float(calls.value) == 2.0


@pytest.mark.parametrize("place", ["run", "function", "python"])
def test_a_loss_may_assign_an_on_read_variable(two, place):
    with two.scope():
        v = rx.Variable(3.0)
        seen = rx.Variable(0.0, synchronization="on_read", aggregation="mean")

    def step():
        def loss_fn():
            seen.assign_add(2.0)
            return v * v

        return rx.grad(loss_fn, v)()

    call = {"run": lambda: two.run(step), "function": rx.function(step), "python": step}[place]
    call()
    call()
    assert float(seen.value) == 4.0


# Unconnected variables.


@pytest.mark.parametrize("place", ["run", "function", "python"])
@pytest.mark.parametrize(
    ("loss_fn", "expected"),
    [
        (lambda a, b: a * a, [6.0, None]),
        (lambda a, b: b * 1.0, [None, 1.0]),
        (lambda a, b: a * a + jax.lax.stop_gradient(b.value), [6.0, None]),
        (lambda a, b: a * a + 0.0 * b, [6.0, 0.0]),  # connected, and zero
        (lambda a, b: jax.lax.stop_gradient(a * b), [None, None]),
        (lambda a, b: jnp.float32(1.0), [None, None]),
    ],
    ids=["unused", "the first unused", "stopped", "zero", "both stopped", "constant"],
)
def test_a_variable_that_the_loss_does_not_depend_on_has_no_gradient(two, place, loss_fn, expected):
    with two.scope():
        a, b = rx.Variable(3.0), rx.Variable(5.0)
    step = lambda: rx.grad(lambda: loss_fn(a, b), [a, b], aggregation="mean")()  # noqa: E731
    gradients = {"run": lambda: two.run(step), "function": rx.function(step), "python": step}[place]()
    assert [None if gradient is None else float(gradient) for gradient in gradients] == expected


def test_run_eagerly_sees_variables_that_are_never_read(two, eagerly):
    with two.scope():
        a, b = rx.Variable(3.0), rx.Variable(5.0)
    gradients = two.run(lambda: rx.grad(lambda: a * a, [a, b], aggregation="mean")())
    assert float(gradients[0]) == 6.0
    assert gradients[1] is None


def test_a_variable_listed_twice_has_its_gradient_in_both_places():
    v = rx.Variable(3.0)
    assert numbers(rx.grad(lambda: v * v, [v, v])()) == [6.0, 6.0]


# Higher order.


def test_the_gradient_of_a_gradient_outside_of_run():
    v = rx.Variable(3.0)

    def gradient_squared():
        return rx.grad(lambda: v**3, v)() ** 2  # (3 v^2)^2 = 9 v^4

    value, gradient = rx.value_and_grad(gradient_squared, v)()
    assert numbers([value, gradient]) == [729.0, 36.0 * 27]
    assert numbers(rx.function(rx.value_and_grad(gradient_squared, v))()) == (729.0, 36.0 * 27)


@pytest.mark.parametrize(("outer", "gradient"), [("sum", 18.0 * 3), ("mean", 9.0 * 3), (None, [18.0, 36.0])])
def test_the_gradient_of_a_replicas_own_gradient(two, w, x, outer, gradient):
    def step(x):
        def loss_fn():
            return rx.grad(lambda: w**3 * x, w, aggregation=None)()  # 3 w^2 x

        return rx.value_and_grad(loss_fn, w, aggregation=outer)()

    loss, result = two.run(step, args=(x,))
    assert numbers(loss) == [27.0, 54.0]
    assert numbers(result) == gradient


@pytest.mark.parametrize(("inner", "rows"), [("sum", 3.0), ("mean", 1.5)])
@pytest.mark.parametrize("outer", ["sum", "mean"])
def test_the_gradient_of_an_aggregated_gradient_counts_once(two, w, x, inner, rows, outer):
    def step(x):
        def loss_fn():
            return rx.grad(lambda: w**3 * x, w, aggregation=inner)()  # 3 w^2 rows, equal on all replicas

        return rx.value_and_grad(loss_fn, w, aggregation=outer)()

    assert numbers(two.run(step, args=(x,))) == (27.0 * rows, 18.0 * rows)


def test_a_penalty_on_the_gradient_joins_a_replicas_own_loss(two, w, x):
    def step(x):
        def loss_fn():
            own = rx.grad(lambda: w**3 * x, w, aggregation=None)()
            return w * x + own**2  # w x + 9 w^4 x^2

        return rx.grad(loss_fn, w)()

    assert numbers(two.run(step, args=(x,))) == 3.0 + 36 * 27.0 * 5


# Misuse.


@pytest.mark.parametrize(
    ("loss_fn", "message"),
    [
        (lambda v: v.value[None], r"scalar float.*\(1,\)"),
        (lambda v: v > 0, "bool"),
        (lambda v: v.value.astype("int32"), "int32"),
        (lambda v: 3, "int32"),
    ],
)
def test_a_loss_is_a_scalar_float(two, loss_fn, message):
    with two.scope():
        v = rx.Variable(3.0)
    for call in (rx.grad(lambda: loss_fn(v), v), lambda: two.run(lambda: rx.grad(lambda: loss_fn(v), v)())):
        with pytest.raises(ArgumentError, match=message):
            call()


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (lambda: [jnp.ones(2)], r"jax\.value_and_grad"),
        (lambda: "w", "str"),
        (lambda: rx.Variable(3, name="count"), "'count' is int32"),
        (lambda: rx.Variable(True, name="flag"), "'flag' is bool"),
    ],
)
def test_gradients_are_with_respect_to_float_variables(variables, message):
    with pytest.raises(ArgumentError, match=message):
        rx.value_and_grad(lambda: 1.0, variables())


@pytest.mark.parametrize("variables", [[], {}, None])
def test_there_is_something_to_differentiate_with_respect_to(two, variables):
    for call in (rx.grad(lambda: 1.0, variables), lambda: two.run(lambda: rx.grad(lambda: 1.0, variables)())):
        with pytest.raises(ArgumentError, match="no variables"):
            call()


def test_a_loss_is_a_function():
    v = rx.Variable(3.0)
    with pytest.raises(ArgumentError, match="must be callable"):
        rx.value_and_grad(v * v, v)


def test_an_unknown_aggregation_is_a_reduce_error():
    v = rx.Variable(3.0)
    with pytest.raises(ReduceError, match="'max'"):
        rx.grad(lambda: v * v, v, aggregation="max")


@pytest.mark.parametrize(
    ("result", "has_aux", "said"),
    [
        (None, False, "no `return`"),
        ("s", False, "str: 's'"),
        ((1.0, 2.0), False, "tuple|shape"),
        (object(), False, "object"),
        (1.0, True, "pair"),
        ((1.0, 2.0, 3.0), True, "pair"),
        (None, True, "pair"),
        ((None, 1.0), True, "no `return`"),
    ],
    ids=range(8),
)
def test_a_loss_that_is_none_is_refused(result, has_aux, said):
    w = rx.Variable(1.0)
    with pytest.raises(ArgumentError, match=said):
        rx.grad(lambda: result, [w], has_aux=has_aux)()


@pytest.mark.parametrize(
    ("use", "said"),
    [(lambda f: (lambda loss, g: g)(*f), "unpacked"), (lambda f: f[1], "indexed"), (len, "length")],
    ids=["unpacked", "indexed", "len"],
)
@pytest.mark.parametrize("make", [rx.value_and_grad, rx.grad], ids=["value_and_grad", "grad"])
def test_who_takes_the_function_for_its_result_is_told_to_call_it(make, use, said):
    w = rx.Variable(2.0)
    made = make(lambda: w * w, [w])
    with pytest.raises(ArgumentError, match=rf"rx\.{make.__name__} returns a function.*{said}.*variables\)\(\)"):
        use(made)
    assert made
    assert made.__name__ == make.__name__
    assert float(jax.tree.leaves(made())[-1]) == 4.0
