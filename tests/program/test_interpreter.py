"""Programs evaluated by rules, and as graphs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from replicax.compat.jax_names import CALLS
from replicax.program.ir.graph import Graph
from replicax.program.ir.interpreter import Interpreter, bind, pass_on
from replicax.program.ir.jaxprs import Mark
from replicax.program.ir.scopes import scope_of


def halved(equation, inputs):
    return [each / 2 for each in bind(equation, inputs)]


@jax.jit
def sine(x):
    return jnp.sin(x) * 3.0


@pytest.mark.parametrize("enters", [(), CALLS], ids=["calls as they are", "calls entered"])
def test_a_rule_is_for_its_primitive_also_in_calls_that_are_entered(enters):
    program = jax.make_jaxpr(lambda x: sine(x) + 1.0)(0.5)
    [found] = Interpreter({"sin": halved}, enters).run(program, [jnp.float32(0.5)])
    assert float(found) == pytest.approx(float(jnp.sin(0.5)) * (1.5 if enters else 3.0) + 1.0)


def test_other_primitives_have_a_rule_in_common():
    program = jax.make_jaxpr(lambda x: jnp.sin(-x))(0.5)
    assert Interpreter({"neg": pass_on}, other=halved).run(program, [0.5]) == [jnp.sin(0.5) / 2]


def test_bodies_of_loops_are_evaluated_likewise():
    program = jax.make_jaxpr(lambda x: jax.lax.fori_loop(0, 2, lambda i, x: sine(x), x))(0.5)
    interpreter = Interpreter(
        {"sin": pass_on}, CALLS, lambda equation, inputs: bind(equation, inputs, **interpreter.retraced(equation))
    )
    assert float(interpreter.run(program, [jnp.float32(0.5)])[0]) == 4.5


def test_values_may_be_other_things_than_arrays():
    program = jax.make_jaxpr(lambda x, y: (x * y) + x)(1.0, 1.0)
    names = Interpreter(other=lambda equation, inputs: [f"{equation.primitive.name}({', '.join(inputs)})"])
    assert names.run(program, ["x", "y"]) == ["add(mul(x, y), x)"]


def test_a_mark_is_known_by_its_kind_and_number():
    mark, other = Mark("kind"), Mark("other")
    [first, second] = jax.make_jaxpr(lambda x: (mark(x), other(x, 12)))(1.0).eqns
    assert (mark.number(first), mark.number(second), other.number(second)) == (0, None, 12)


def fork(x, y):
    a = jnp.sin(x)
    b = jnp.cos(y)
    return a * b, jnp.exp(a)


def test_a_graph_knows_what_follows_what_leads_to_and_what_is_between():
    jaxpr = jax.make_jaxpr(fork)(1.0, 1.0).jaxpr
    graph, (x, y), (product, exponential) = Graph(jaxpr.eqns), jaxpr.invars, jaxpr.outvars
    sin, cos, mul, exp = jaxpr.eqns
    assert graph.following([y]) == {y, *cos.outvars, product}
    assert graph.leading_to([exponential]) == ([sin, exp], {exponential, *sin.outvars, x})
    assert graph.between([y], product) == [cos, mul]
    assert graph.producer[product] is mul


def test_a_part_of_a_graph_waits_if_it_may_and_nothing_else_needs_it():
    jaxpr = jax.make_jaxpr(fork)(1.0, 1.0).jaxpr
    sin, cos, mul, exp = jaxpr.eqns
    needed = set()
    assert Graph(jaxpr.eqns).part(lambda each: each is not exp, needed) == ([sin, exp], [cos, mul])
    assert needed == {*sin.outvars, jaxpr.invars[0]}


def test_a_value_comes_from_where_it_is_made_through_calls():
    program = jax.make_jaxpr(lambda x: sine(x) + 1.0)(0.5)
    top = scope_of(program, [])
    [call, addition] = program.jaxpr.eqns
    scope, equation = top.maker(addition.invars[0])
    assert (scope is top.called(call), equation.primitive.name) == (True, "mul")
    assert top.maker(program.jaxpr.invars[0]) is None
    made_in, made = scope.origin(scope.jaxpr.invars[0])
    assert (made_in, made) == (top, program.jaxpr.invars[0])
