"""Evaluating an update on some of a variable's rows: possible where each new row depends on the same row alone.

A variable that is cut over servers is updated part by part, and of a large table only the rows that a step has touched.
Both are right for updates that work element by element, or row by row: SGD, Adam, Adagrad, clipping by value. An update
that needs the norm of the whole variable is not of this kind, and is refused with the name of what stands in the way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from replicax.errors import ProgramError
from replicax.program.jaxprs import bind, is_literal, read

BY_ELEMENT = frozenset([
    "abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil",
    "clamp", "convert_element_type", "copy", "copy_p", "cos", "cosh", "div", "eq", "erf", "erf_inv", "erfc",
    "exp", "exp2", "expm1", "floor", "ge", "gt", "integer_pow", "is_finite", "le", "lgamma", "log", "log1p",
    "logistic", "lt", "max", "min", "mul", "name", "ne", "neg", "nextafter", "not", "or", "pow", "real",
    "reduce_precision", "rem", "round", "rsqrt", "select_n", "sign", "sin", "sinh", "sqrt", "square",
    "stop_gradient", "sub", "tan", "tanh", "xor",
])  # fmt: skip
_BY_ROW = frozenset(
    ["argmax", "argmin", "reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_prod", "reduce_sum"]
)


class NotByRowsError(ProgramError):
    """An update that cannot be made row by row."""


def evaluate_rows(
    equations: Iterable[Any],
    values: dict[Any, Any],
    by_row: set[Any],
    full: int,
    rows: int,
    first: int | None = None,
) -> None:
    """Evaluates equations on `rows` of `full` rows.

    Args:
        equations: Equations, in order.
        values: What is known, those of `by_row` with `rows` instead of `full` rows. Results are added.
        by_row: The variables of the program whose first dimension is that of rows. Results are added.
        full: Number of rows that the program was written for.
        rows: Number of rows there are.
        first: Which one is the first of them, if they follow each other: of other values, constants say, the same rows
            are taken then.

    Raises:
        NotByRowsError: An equation mixes rows.
    """
    for equation in equations:
        touched = [not is_literal(atom) and atom in by_row for atom in equation.invars]
        inputs = [read(atom, values) for atom in equation.invars]
        if first is not None and equation.primitive.name in BY_ELEMENT and any(touched):
            for i, atom in enumerate(equation.invars):
                if not touched[i] and tuple(atom.aval.shape[:1]) == (full,):
                    inputs[i], touched[i] = inputs[i][first : first + rows], True
        changes, result_by_row = _adapted(equation, touched, full, rows)
        values.update(zip(equation.outvars, bind(equation, inputs, **changes), strict=True))
        if result_by_row:
            by_row.update(equation.outvars)


def _adapted(equation: Any, touched: Sequence[bool], full: int, rows: int) -> tuple[dict[str, Any], bool]:
    """Returns the parameters of an equation that change with the number of rows, and whether its result has rows."""
    name, params = equation.primitive.name, equation.params
    if name == "broadcast_in_dim":
        return _broadcast(equation, touched[0], full, rows)
    if not any(touched):
        if any(tuple(out.aval.shape[:1]) == (full,) for out in equation.outvars) and not equation.invars:
            raise _refused(equation)
        return {}, False
    if name in BY_ELEMENT and _all_have_rows(equation, touched):
        return {}, True
    if name in _BY_ROW and 0 not in params["axes"]:
        return {}, True
    if name == "reshape" and params["new_sizes"][:1] == (full,) and not params["dimensions"]:
        return {"new_sizes": (rows, *params["new_sizes"][1:])}, True
    if name == "squeeze" and 0 not in params["dimensions"]:
        return {}, True
    if name == "expand_dims" and 0 not in params["dimensions"]:
        return {}, True
    raise _refused(equation)


def _broadcast(equation: Any, touched: bool, full: int, rows: int) -> tuple[dict[str, Any], bool]:
    shape, dimensions = equation.params["shape"], equation.params["broadcast_dimensions"]
    if touched and (not dimensions or dimensions[0] != 0 or shape[0] != full):
        raise _refused(equation)
    if not shape or shape[0] != full or (not touched and 0 in dimensions and _rows_of(equation.invars[0]) != 1):
        return {}, touched
    return {"shape": (rows, *shape[1:])}, True


def _all_have_rows(equation: Any, touched: Sequence[bool]) -> bool:
    """Returns whether all operands have rows, or are the same for all of them."""
    pairs = zip(equation.invars, touched, strict=True)
    return all(has_rows or not atom.aval.shape or _rows_of(atom) == 1 for atom, has_rows in pairs)


def _rows_of(atom: Any) -> int:
    return atom.aval.shape[0]


def _refused(equation: Any) -> NotByRowsError:
    shapes = ", ".join(str(tuple(atom.aval.shape)) for atom in equation.invars)
    return NotByRowsError(f"`{equation.primitive.name}` of shapes {shapes} mixes the rows of a variable")
