"""Fills the template of a row with the arguments of a call."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import libcst as cst

from replicax.tensorflow.codemod.adapting import ADAPTERS, Unconvertible, as_tuple, is_literal, literal
from replicax.tensorflow.codemod.op_row import OpRow

#: Parameters that change no number: they are dropped.
IGNORED = frozenset({"name", "parallel_iterations", "swap_memory", "back_prop", "validate_indices"})
_AXES = frozenset({"axis", "axes"})


class Parameters(NamedTuple):
    """The parameters of a function of TensorFlow."""

    names: tuple[str, ...]  # in their order, without `rest`
    defaults: Mapping[str, str]  # as source
    rest: str | None  # the parameter that takes any number of positional arguments


def parameters(signature: str) -> Parameters:
    """Returns the parameters of a signature such as `"math.top_k(input, k=1, sorted=True)"`."""
    _, _, inner = signature.partition("(")
    function = ast.parse(f"def f({inner}: pass").body[0]
    assert isinstance(function, ast.FunctionDef), signature
    arguments = function.args
    names = [each.arg for each in arguments.args]
    pairs = list(zip(names[len(names) - len(arguments.defaults) :], arguments.defaults, strict=True))
    pairs += [
        (each.arg, value) for each, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if value
    ]
    defaults = {name: ast.unparse(value) for name, value in pairs}
    return Parameters(tuple(names), defaults, arguments.vararg.arg if arguments.vararg else None)


def filled(row: OpRow, call: cst.Call) -> cst.BaseExpression:
    """Returns the expression that replaces a call."""
    known = parameters(row.signature)
    given, rest = bound(row.name, known, call.args)
    template = cst.parse_expression(row.template)
    mentioned = _mentioned(template)
    for name, value in given.items():
        used = name in mentioned or name in row.ignored or any(adapter.endswith(":" + name) for _, adapter in row.adapt)
        if not used and not _is_default(value, known.defaults.get(name)):
            raise Unconvertible(f"the argument `{name}` has no counterpart in Keras")
    filler = _Filler(row, known, given, rest)
    result = template.visit(filler)
    assert isinstance(result, cst.BaseExpression)
    return result


def bound(
    name: str, known: Parameters, args: Sequence[cst.Arg]
) -> tuple[dict[str, cst.BaseExpression], list[cst.BaseExpression]]:
    """Returns the arguments of a call by parameter, and the rest of the positional ones."""
    given: dict[str, cst.BaseExpression] = {}
    rest: list[cst.BaseExpression] = []
    for place, arg in enumerate(args):
        if arg.star:
            raise Unconvertible("arguments are given with `*`, so that it is not known which there are")
        if arg.keyword is not None:
            given[arg.keyword.value] = arg.value
        elif place < len(known.names):
            given[known.names[place]] = arg.value
        elif known.rest is not None:
            rest.append(arg.value)
        else:
            raise Unconvertible(f"`{name}` is given more arguments than are known here")
    return {name: value for name, value in given.items() if name not in IGNORED}, rest


def _is_default(value: cst.BaseExpression, default: str | None) -> bool:
    if default is None:
        return False
    if cst.Module([]).code_for_node(value) == default:
        return True
    return (
        is_literal(value)
        and is_literal(cst.parse_expression(default))
        and (literal(value) == literal(cst.parse_expression(default)))
    )


def _mentioned(template: cst.CSTNode) -> set[str]:
    names: set[str] = set()

    class Visitor(cst.CSTVisitor):
        def visit_Name(self, node: cst.Name) -> None:
            names.add(node.value)

    template.visit(Visitor())
    return names


class _Filler(cst.CSTTransformer):
    """Puts arguments in the places of parameters."""

    def __init__(
        self,
        row: OpRow,
        known: Parameters,
        given: Mapping[str, cst.BaseExpression],
        rest: Sequence[cst.BaseExpression],
    ):
        super().__init__()
        self._row, self._known, self._given, self._rest = row, known, given, rest
        self._adapt = dict(row.adapt)

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        return False

    def visit_Arg_keyword(self, node: cst.Arg) -> None:
        self._in_keyword = True

    def leave_Arg_keyword(self, node: cst.Arg) -> None:
        self._in_keyword = False

    _in_keyword = False

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        name = original_node.value
        if self._in_keyword or (name not in self._known.names and name not in self._known.defaults):
            return updated_node
        return self._value(name)

    def leave_Arg(
        self, original_node: cst.Arg, updated_node: cst.Arg
    ) -> cst.Arg | cst.FlattenSentinel[cst.Arg] | cst.RemovalSentinel:
        if original_node.star == "*":
            return cst.FlattenSentinel([cst.Arg(value) for value in self._rest])
        keyword, value = original_node.keyword, original_node.value
        left_out = (
            isinstance(value, cst.Name) and value.value in self._known.defaults and value.value not in self._given
        )
        if keyword is not None and left_out and cst.ensure_type(value, cst.Name).value not in self._row.always:
            return cst.RemoveFromParent()
        return updated_node

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        if not updated_node.args:
            return updated_node
        last = updated_node.args[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        return updated_node.with_changes(args=[*updated_node.args[:-1], last])

    def _value(self, name: str) -> cst.BaseExpression:
        value = self._given.get(name)
        if value is None:
            if name not in self._known.defaults:
                raise Unconvertible(f"the argument `{name}` is missing")
            value = cst.parse_expression(self._known.defaults[name])
        adapter = self._adapt.get(name)
        if adapter is not None:
            return ADAPTERS[adapter](value, self._given)
        return as_tuple(value, self._given) if name in _AXES else value


def template_modules(expression: cst.BaseExpression) -> set[str]:
    """Returns the modules that converted code needs besides those of the script."""
    return _mentioned(expression) & {"keras", "np", "jax", "jnp"}
