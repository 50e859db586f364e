"""The cheapest place to cut a program, against looking at all of them."""

from __future__ import annotations

import itertools
import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings, strategies as st

import replicax
from replicax.errors import ProgramError
from replicax.program.cut.min_cut import cheapest_cut
from replicax.program.ir.jaxprs import is_literal

KIB = 256  # float32 numbers in a KiB: sizes differ by more than what the algorithm rounds to


def cut(fn, *args):
    """The values that `fn`, all of whose results are wanted, is cut at: (name of the operation, shape) of each."""
    jaxpr = jax.make_jaxpr(fn)(*args).jaxpr
    producer = {out: equation.primitive.name for equation in jaxpr.eqns for out in equation.outvars}
    values = cheapest_cut(jaxpr.invars, jaxpr.eqns, set(jaxpr.outvars))
    return [(producer.get(value, "source"), value.aval.shape) for value in values]


def vector(kib):
    return jnp.ones(kib * KIB)


def test_the_smallest_value_on_a_chain_is_sent():
    assert cut(lambda x: jnp.exp(jnp.sum(jnp.sin(x))) * jnp.ones(KIB), vector(4)) == [("exp", ())]
    assert cut(lambda x: jnp.sin(x[:KIB]), vector(4)) == [("sin", (KIB,))]
    assert cut(lambda x: jnp.concatenate([jnp.sin(x)] * 3), vector(1)) == [("sin", (KIB,))]


def test_of_equal_cuts_the_last_is_taken():
    assert cut(lambda x: jnp.cos(jnp.exp(jnp.sin(x))), vector(1)) == [("cos", (KIB,))]


def test_a_diamond_is_cut_where_it_is_narrow():
    def narrow_below(x):
        return jnp.sin(x) * jnp.cos(x)

    def narrow_above(x):
        y = jnp.sum(x)
        return jnp.sin(y) * jnp.ones(KIB), jnp.cos(y) * jnp.ones(KIB)

    assert cut(narrow_below, vector(2)) == [("mul", (2 * KIB,))]
    assert cut(narrow_above, vector(2)) == [("reduce_sum", ())]


def test_a_source_that_several_results_share_is_sent_once():
    assert cut(lambda x: (jnp.sin(x), jnp.cos(x)), vector(1)) == [("source", (KIB,))]
    assert cut(lambda x: (jnp.sin(x), jnp.cos(x[:3])), vector(1)) == [("source", (KIB,))]
    assert cut(lambda x: (jnp.sum(x), jnp.cos(x[:3])), vector(1)) == [("reduce_sum", ()), ("cos", (3,))]


def test_what_is_wanted_as_it_is_is_sent_and_nothing_that_follows_from_it():
    assert cut(lambda x: (x, jnp.sin(x)), vector(1)) == [("source", (KIB,))]
    assert cut(lambda x, y: x + y, vector(1), vector(1)) == [("add", (KIB,))]
    assert cut(lambda x, y: (x + y, x, y), vector(1), vector(1)) == [("source", (KIB,)), ("source", (KIB,))]


def test_a_smaller_type_is_a_smaller_value():
    def widened(x):
        return jnp.sin(x.astype("bfloat16").astype("float32"))

    ((name, shape),) = cut(widened, vector(1))
    assert (name, shape) == ("convert_element_type", (KIB,))


def test_what_follows_from_constants_alone_is_not_sent():
    assert cut(lambda x: x[:3] * jnp.arange(3.0), vector(1)) == [("mul", (3,))]
    assert cut(lambda x: (jnp.sum(x), jnp.arange(3.0) * 2), vector(1)) == [("reduce_sum", ())]


def test_nothing_wanted_nothing_sent():
    jaxpr = jax.make_jaxpr(jnp.sin)(vector(1)).jaxpr
    assert cheapest_cut(jaxpr.invars, jaxpr.eqns, set()) == []


def test_huge_values_do_not_overflow():
    shape = jax.ShapeDtypeStruct((2**20, 2**20), "float32")
    jaxpr = jax.make_jaxpr(lambda x: jnp.sum(jnp.sin(x), axis=0))(shape).jaxpr
    assert [v.aval.shape for v in cheapest_cut(jaxpr.invars, jaxpr.eqns, set(jaxpr.outvars))] == [(2**20,)]


def test_without_scipy_the_error_names_it_and_the_strategies_that_need_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.sparse", None)
    with pytest.raises(ProgramError, match=r"CentralStorageStrategy split .* pip install scipy"):
        cut(jnp.sin, vector(1))


def test_scipy_is_imported_by_the_minimum_cut_alone():
    package = Path(replicax.__file__).parent
    users = {file.name for file in package.rglob("*.py") if re.search(r"(import|from) scipy", file.read_text())}
    assert users == {"min_cut.py"}


# Against all cuts.


class Value:
    """As much of a program's variable as the algorithm looks at."""

    def __init__(self, kib):
        self.aval = jax.core.ShapedArray((kib * KIB,), jnp.float32)

    @property
    def size(self):
        return 1 + self.aval.shape[0] * 4 // 64


class Equation:
    def __init__(self, invars, outvars):
        self.invars, self.outvars = invars, outvars


@st.composite
def programs(draw):
    sources = [Value(draw(st.integers(1, 5))) for _ in range(draw(st.integers(1, 3)))]
    values, equations = list(sources), []
    for _ in range(draw(st.integers(0, 5))):
        operands = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))
        results = [Value(draw(st.integers(1, 5))) for _ in range(draw(st.integers(1, 2)))]
        equations.append(Equation(operands, results))
        values += results
    return sources, equations, set(draw(st.lists(st.sampled_from(values), min_size=1, max_size=3)))


def follows(sent, equations):
    """Everything that can be computed from `sent`."""
    known = set(sent)
    for equation in equations:
        if all(not is_literal(atom) and atom in known for atom in equation.invars):
            known.update(equation.outvars)
    return known


@settings(max_examples=60)
@given(programs())
def test_no_cut_is_cheaper_and_of_the_cheapest_none_is_later(program):
    sources, equations, wanted = program
    found = cheapest_cut(sources, equations, wanted)
    values = list(dict.fromkeys([*sources, *(out for equation in equations for out in equation.outvars)]))
    assert wanted <= follows(found, equations)
    cost = sum(value.size for value in found)
    for chosen in itertools.product([False, True], repeat=len(values)):
        sent = [value for value, flag in zip(values, chosen, strict=True) if flag]
        if wanted <= follows(sent, equations):
            assert sum(value.size for value in sent) >= cost
            if sum(value.size for value in sent) == cost:
                assert set(found) <= follows(sent, equations)
