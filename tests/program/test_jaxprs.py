"""Programs as data: written out flat, evaluated in part, and their gradients found."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core as jex_core
from jax.sharding import PartitionSpec

import replicax as rx
from replicax.compat.jax import axes_of_type
from replicax.compat.jax_equations import location, scopes
from replicax.compat.jax_names import CALLS
from replicax.program.ir.interpreter import evaluate, evaluate_elsewhere
from replicax.program.ir.jaxprs import is_literal, is_mark, marked_as_gradient, read
from replicax.program.ir.moving import inlined
from replicax.runtime import REPLICA_AXIS, replica_mesh


def names(program):
    return [equation.primitive.name for equation in program.jaxpr.eqns]


def flat(fn, *args):
    return inlined(jax.make_jaxpr(fn)(*args))


@jax.custom_jvp
def doubled(x):
    return jax.jit(jnp.sin)(x) * 2


doubled.defjvp(lambda primals, tangents: (doubled(*primals), 2 * tangents[0]))


@jax.custom_vjp
def tripled(x, y):
    return jnp.cos(x) * y


tripled.defvjp(lambda x, y: (tripled(x, y), None), lambda _, g: (g, g))


@pytest.mark.parametrize(
    "fn",
    [
        jax.jit(lambda x: jax.jit(jnp.sin)(x) + jax.jit(lambda y: y * jnp.arange(3.0))(x)),
        doubled,
        lambda x: tripled(x, jax.nn.relu(x)),
        lambda x: (jax.nn.silu(x), x, 3.0, jnp.zeros(2)),
    ],
    ids=["jit", "custom_jvp", "custom_vjp", "outputs"],
)
def test_calls_are_written_out(fn):
    x = jnp.array([0.5, -1.0, 2.0])
    program = flat(fn, x)
    assert not CALLS.keys() & set(names(program))
    results = jex_core.jaxpr_as_fun(program)(x)
    for ours, expected in zip(results, jax.tree.leaves(fn(x)), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-6)


def test_loops_and_conditions_stay_as_they_are():
    def fn(x):
        y, _ = jax.lax.scan(lambda carry, row: (carry + jax.jit(jnp.sin)(row), None), 0.0, x)
        return jax.lax.cond(y > 0, jnp.exp, jnp.log, y)

    program = flat(fn, jnp.arange(3.0))
    assert {"scan", "cond"} <= set(names(program))
    np.testing.assert_allclose(jex_core.jaxpr_as_fun(program)(jnp.arange(3.0))[0], fn(jnp.arange(3.0)), rtol=1e-6)


def test_arrays_that_the_function_holds_stay_with_it():
    held = jnp.arange(3.0)
    program = flat(jax.jit(lambda x: x * held), jnp.ones(3))
    np.testing.assert_array_equal(jex_core.jaxpr_as_fun(program)(jnp.ones(3))[0], held)


def test_inside_shard_map_types_tell_what_differs_between_replicas():
    found = []

    def body(x, y):
        program = flat(jax.jit(lambda x, y: (x + 1, y + 1, jax.lax.psum(x, REPLICA_AXIS))), x, y)
        found.extend(REPLICA_AXIS in axes_of_type(aval) for aval in program.out_avals)
        return jax.lax.psum(x, REPLICA_AXIS)

    specs = (PartitionSpec(REPLICA_AXIS), PartitionSpec())
    mapped = jax.shard_map(body, mesh=replica_mesh(jax.devices()[:2]), in_specs=specs, out_specs=PartitionSpec())
    jax.eval_shape(mapped, jnp.ones(2), jnp.ones(2))
    assert found == [True, False, False]


# Evaluating.


@pytest.mark.parametrize("evaluated", [evaluate, evaluate_elsewhere], ids=["here", "elsewhere"])
def test_some_equations_are_evaluated_and_the_others_are_not(evaluated):
    program = flat(lambda x: (jnp.sin(x) * 2.0, jnp.cos(x)), 1.0)
    x, (doubled_sine, cosine) = program.jaxpr.invars[0], program.jaxpr.outvars
    values = {x: jnp.float32(0.5)}
    evaluated(program.jaxpr.eqns[:2], values)
    assert float(read(doubled_sine, values)) == pytest.approx(2 * np.sin(0.5))
    assert cosine not in values


def test_a_literal_is_its_own_value():
    program = flat(lambda x: (x * 3.0, 7.0), 1.0)
    three, seven = program.jaxpr.eqns[0].invars[1], program.jaxpr.outvars[1]
    assert is_literal(three)
    assert is_literal(seven)
    assert not is_literal(program.jaxpr.invars[0])
    assert (float(read(three, {})), float(read(seven, {}))) == (3.0, 7.0)


def test_equations_of_shard_map_are_evaluated_outside_of_it():
    found = []

    def body(x):
        found[:] = [flat(lambda x: x * 2.0 + jnp.ones(()), x)]
        return x

    mesh = replica_mesh(jax.devices()[:2])
    jax.eval_shape(jax.shard_map(body, mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec()), 1.0)
    (program,) = found

    @jax.jit
    def outside(x):
        values = {program.jaxpr.invars[0]: x}
        evaluate_elsewhere(program.jaxpr.eqns, values)
        return read(program.jaxpr.outvars[0], values)

    result = outside(jax.device_put(jnp.float32(3.0), jax.devices()[5]))
    assert float(result) == 7.0
    assert result.devices() == {jax.devices()[5]}


def test_what_is_evaluated_keeps_its_line_and_its_scopes():
    @jax.named_scope("inner")
    def doubled(x):
        return x * 2.0

    program = flat(doubled, 1.0)

    @jax.named_scope("outer")
    def again(x):
        values = {program.jaxpr.invars[0]: x}
        evaluate(program.jaxpr.eqns, values)
        return read(program.jaxpr.outvars[0], values)

    [equation] = jax.make_jaxpr(again)(1.0).eqns
    assert "(test_what_is_evaluated_keeps_its_line_and_its_scopes.<locals>.doubled)" in location(equation)
    assert scopes(equation) == "outer/inner"


# Marks.


def marks(program):
    return [equation for equation in program.jaxpr.eqns if is_mark(equation)]


def test_a_marked_value_is_the_value():
    (mark,) = marks(flat(lambda x: marked_as_gradient(x * 2) + 1, jnp.ones(3)))
    assert mark.outvars[0].aval.shape == (3,)
    np.testing.assert_array_equal(marked_as_gradient(jnp.arange(3)), jnp.arange(3))


def test_other_names_are_no_marks():
    assert not marks(flat(lambda x: jax.ad_checkpoint.checkpoint_name(x, "mine") * 2, 1.0))


def test_a_loop_or_condition_with_a_mark_in_it_is_one():
    def loop(x):
        return jax.lax.scan(lambda carry, row: (carry + marked_as_gradient(row), None), 0.0, x)[0]

    def condition(x):
        return jax.lax.cond(jnp.sum(x) > 0, lambda x: marked_as_gradient(x), lambda x: x, x)

    for fn in (loop, condition):
        assert len(marks(flat(fn, jnp.ones(3)))) == 1
    assert not marks(flat(lambda x: jax.lax.scan(lambda carry, row: (carry + row, None), 0.0, x)[0], jnp.ones(3)))


def test_what_replicas_do_is_no_mark():
    mesh = replica_mesh(jax.devices()[:2])
    mapped = jax.shard_map(marked_as_gradient, mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec())
    assert not marks(flat(mapped, jnp.ones(2)))


def test_a_gradient_is_marked_and_one_inside_of_a_loss_is_not():
    w = rx.Variable(2.0)

    def penalized():
        return w * w + rx.grad(lambda: w * w * w, w)() ** 2

    assert float(rx.grad(penalized, w)()) == 2 * 2 + 2 * (3 * 4) * (6 * 2)
    for loss_fn in (penalized, lambda: w * w):
        assert len(marks(flat(lambda x, loss_fn=loss_fn: (x, rx.grad(loss_fn, w)()), 1.0))) == 1


@pytest.mark.parametrize("loop", ["cond", "scan", "while"])
def test_loops_and_conditions_of_several_meshes_meet_outside(loop):
    """JAX notes in them the mesh on which they were traced."""

    def fn(x):
        if loop == "cond":
            return jax.lax.cond(jnp.sum(x) > 0, lambda x: jax.jit(jnp.sin)(x) * 2.0, lambda x: x, x)
        if loop == "scan":
            return jax.lax.scan(lambda carry, _: (carry * 2.0, None), x, None, length=3)[0]
        return jax.lax.while_loop(lambda x: jnp.sum(x) < 10.0, lambda x: x * 2.0, x)

    found = []

    def body(x):
        found.append(flat(fn, x))
        return x

    for count in (1, 2):
        mesh = replica_mesh(jax.devices()[:count])
        mapped = jax.shard_map(body, mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec())
        jax.eval_shape(mapped, jnp.ones(2))

    @jax.jit
    def outside(x):
        results = []
        for program in found:
            values = {program.jaxpr.invars[0]: x}
            evaluate_elsewhere(program.jaxpr.eqns, values)
            results.append(read(program.jaxpr.outvars[0], values))
        return results[0] + results[1]

    np.testing.assert_allclose(outside(jnp.ones(2)), 2 * fn(jnp.ones(2)), rtol=1e-6)
