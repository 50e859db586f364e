from __future__ import annotations

import ast
import sys
from pathlib import Path

import jax
import jax.ad_checkpoint
import jax.experimental
import jax.experimental.custom_partitioning
import jax.experimental.pallas
import jax.numpy as jnp
import jax.random
import jax.scipy.special
import pytest
from jax.extend import core as jex_core

import replicax.compat.jax_names as jax_names
import replicax.compat.jax_primitives  # noqa: F401  # makes replicax's own
from replicax.program.ir.jaxprs import equations_in
from tests.compat.guards import needs
from tests.each import each

PACKAGE = Path(jax_names.__file__).parents[1]
# Names that only some of the supported versions have.
FIRST_WITH = {"log2": (0, 12), "one_minus_square": (0, 12), "vary_unreduced_cast": (0, 12)}
LAST_WITH = {"closed_call": (0, 10)}

# What is called with rules, or with names.
TAKE_NAMES = ("Interpreter", "super().__init__", "is_one_of")

TABLES = {name: value for name, value in vars(jax_names).items() if name.isupper()}


def names_of_tables():
    return {name for table in TABLES.values() for name in ([table] if isinstance(table, str) else table)}


def names_of_comparisons():
    """Returns the names that replicax compares `equation.primitive.name` with, outside of the tables, and where."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        for function in ast.walk(tree):
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                aliases = aliases_in(function)
                for node in ast.walk(function):
                    if isinstance(node, ast.Compare) and is_name(node.left, aliases):
                        for constant in strings_in(node.comparators):
                            found.setdefault(constant, f"{path.name}:{node.lineno}")
        rules = rules_in(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in TAKE_NAMES:
                names = names_in(node.args)
            elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and targets_of(node) & rules:
                names = names_in([node.value])
            else:
                continue
            for name in names:
                found.setdefault(name, f"{path.name}:{node.lineno}")
    return found


def rules_in(tree):
    """Returns what holds rules by the names of primitives, or some names."""
    found = {"rules", "self._rules"} if "Interpreter" in ast.unparse(tree) else set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            if node.args and is_name(node.args[0], set()):
                found.add(ast.unparse(node.func.value))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "is_one_of":
            found.add(ast.unparse(node.args[1]))
    return found


def targets_of(node):
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    each = [element for target in targets for element in getattr(target, "elts", [target])]
    return set(map(ast.unparse, each))


def names_in(nodes):
    """Returns the keys of dictionaries and the elements of lists and sets."""
    inner = [node for each in nodes for node in ast.walk(each)]
    keys = [key for node in inner if isinstance(node, ast.Dict) for key in node.keys]
    elements = [each for node in inner if isinstance(node, (ast.List, ast.Set)) for each in node.elts]
    return [each.value for each in keys + elements if isinstance(each, ast.Constant) and type(each.value) is str]


def aliases_in(function):
    """Returns the local names that a function gives the name of a primitive."""
    aliases = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            pairs = [(node.targets[0], node.value)]
            if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(node.targets[0].elts, node.value.elts, strict=False))
            aliases |= {to.id for to, value in pairs if isinstance(to, ast.Name) and is_name(value, set())}
    return aliases


def is_name(node, aliases):
    if isinstance(node, ast.Name):
        return node.id in aliases
    return ast.unparse(node).endswith("primitive.name")


def strings_in(nodes):
    return [n.value for node in nodes for n in ast.walk(node) if isinstance(n, ast.Constant) and type(n.value) is str]


@pytest.fixture(scope="module")
def primitives():
    modules = [module for name, module in list(sys.modules.items()) if name.startswith(("jax", "replicax.compat"))]
    return {
        found.name for module in modules for found in vars(module).values() if isinstance(found, jex_core.Primitive)
    }


def version():
    return tuple(int(part) for part in jax.__version__.split(".")[:2])


@pytest.fixture(scope="module")
def compared():
    return names_of_comparisons()


@pytest.mark.slow
def test_comparisons_are_found(compared):
    assert len(compared) > 20
    assert {"scatter-add", "cond", "select_n"} <= compared.keys()


def test_jax_has_a_primitive_of_each_name(primitives, compared):
    def check(name):
        if version() < FIRST_WITH.get(name, (0, 0)) or version() > LAST_WITH.get(name, version()):
            assert name not in primitives  # Otherwise what this file says of versions is wrong.
        else:
            needs("jax", f"primitive {name}", lambda: dict.fromkeys(primitives)[name])

    each(sorted(names_of_tables() | compared.keys()), check)


def test_programs_have_the_calls_and_their_parameters():
    @jax.custom_jvp
    def with_jvp(x):
        return x

    with_jvp.defjvp(lambda x, t: (x[0], t[0]))

    @jax.custom_vjp
    def with_vjp(x):
        return x

    with_vjp.defvjp(lambda x: (x, None), lambda _, t: (t,))
    for fn in (jax.jit(lambda x: x + 1), with_jvp, with_vjp, jax.checkpoint(lambda x: x + 1)):
        [equation] = jax.make_jaxpr(fn)(1.0).eqns
        parameter = (jax_names.CALLS | jax_names.RECOMPUTED)[equation.primitive.name]
        assert hasattr(needs("jax", f"{equation.primitive}.{parameter}", lambda: equation.params[parameter]), "eqns")  # noqa: B023


UNARY = [
    jnp.abs, jnp.arcsin, jnp.arctan, jnp.arctanh, jnp.cbrt, jnp.ceil, jnp.cos, jnp.cosh, jnp.exp, jnp.exp2, jnp.expm1,
    jnp.log, jnp.log10, jnp.log1p, jnp.log2, jnp.negative, jnp.reciprocal, jnp.sign, jnp.sin, jnp.sinh, jnp.sqrt,
    jnp.square, jnp.tan, jnp.tanh, jax.lax.rsqrt, jax.nn.celu, jax.nn.elu, jax.nn.gelu, jax.nn.hard_swish,
    jax.nn.leaky_relu, jax.nn.log_sigmoid, jax.nn.mish, jax.nn.relu, jax.nn.relu6, jax.nn.selu, jax.nn.sigmoid,
    jax.nn.silu, jax.nn.soft_sign, jax.nn.softplus, jax.nn.tanh, lambda x: x**-2.5, lambda x: jnp.where(x > 0, x, 0),
]  # fmt: skip


@pytest.mark.parametrize("fn", UNARY, ids=lambda fn: fn.__name__)
def test_what_is_done_number_by_number_is_known_as_that_and_so_is_its_gradient(fn):
    known = jax_names.BY_ELEMENT | {"broadcast_in_dim", "polynomial", "reduce_sum", "symbolic_zeros"}
    program = jax.make_jaxpr(jax.value_and_grad(lambda x: jnp.sum(fn(x))))(jnp.full(3, 0.5))
    found = {equation.primitive.name for equation in equations_in(program.jaxpr)}
    assert found <= known | jax_names.CALLS.keys() | jax_names.RECOMPUTED.keys()


def test_no_two_places_hold_tables_of_names():
    known = names_of_tables()
    for path in PACKAGE.rglob("*.py"):
        if path.name == "jax_names.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.Set, ast.List, ast.Tuple, ast.Dict)):
                own = node.keys if isinstance(node, ast.Dict) else node.elts
                strings = {element.value for element in own if isinstance(element, ast.Constant)}
                assert len(strings) <= 4 or not strings <= known, f"{path}:{node.lineno}: {strings}"
