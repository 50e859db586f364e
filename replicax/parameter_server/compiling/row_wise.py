"""Evaluating an update on some of a variable's rows: possible where each new row depends on the same row alone.

A variable that is cut over servers is updated part by part, and of a large table only the rows that a step has
touched. Both are right for updates that work element by element, or row by row: SGD, Adam, Adagrad, clipping by value.
Where some entries are updated (`v.at[rows].add(changes)`), each part takes the changes of its own. An update that needs
the norm of the whole variable is not of this kind, and is refused with the name of what stands in the way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.lax import GatherScatterMode

from replicax.compat.jax_names import ALL_REDUCTIONS, BY_ELEMENT, CUMULATIVE, SCATTERS
from replicax.errors import ProgramError
from replicax.program.jaxprs import bind, is_literal, read

_COMBINING = BY_ELEMENT | {"concatenate"}


# What these modes do with an index out of range can be done for a row that is elsewhere.
_DROPPING = (GatherScatterMode.FILL_OR_DROP, GatherScatterMode.PROMISE_IN_BOUNDS)


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
        if first is not None and equation.primitive.name in _COMBINING and any(touched):
            for i, atom in enumerate(equation.invars):
                if not touched[i] and tuple(atom.aval.shape[:1]) == (full,):
                    inputs[i], touched[i] = inputs[i][first : first + rows], True
        if equation.primitive.name in SCATTERS and _scatters_by_row(equation, touched, first):
            values[equation.outvars[0]] = _scattered(equation, inputs, full, rows, first, touched[2])
            by_row.add(equation.outvars[0])
            continue
        changes, result_by_row = _adapted(equation, touched, full, rows, first)
        values.update(zip(equation.outvars, bind(equation, inputs, **changes), strict=True))
        if result_by_row:
            by_row.update(equation.outvars)


def has_entries_of_its_own(equations: Iterable[Any], value: Any) -> bool:
    """Returns whether a value goes into a scatter as indices or updates: its first dimension is not that of rows."""
    following = {value}
    for equation in equations:
        touched = [not is_literal(atom) and atom in following for atom in equation.invars]
        if any(touched):
            following.update(equation.outvars)
            if equation.primitive.name in SCATTERS and (touched[1] or (touched[2] and not _is_for_all_rows(equation))):
                return True
    return False


def _is_for_all_rows(equation: Any) -> bool:
    """Returns whether a scatter's updates have the operand's rows, as in `x.at[:, 1].add(updates)`."""
    numbers, (operand, _, updates) = equation.params["dimension_numbers"], equation.invars
    chosen = {*numbers.scatter_dims_to_operand_dims, *numbers.inserted_window_dims, *numbers.operand_batching_dims}
    is_first = 0 not in chosen and numbers.update_window_dims[:1] == (0,)
    return is_first and bool(updates.aval.shape[:1] == operand.aval.shape[:1])


def _scatters_by_row(equation: Any, touched: Sequence[bool], first: int | None) -> bool:
    if touched[1] or not touched[0]:
        return False
    return _is_for_all_rows(equation) if touched[2] else first is not None


def _scattered(equation: Any, inputs: Sequence[Any], full: int, rows: int, first: int | None, has_rows: bool) -> Any:
    """Returns what a scatter makes of the rows that are here; what it does to others is dropped.

    Args:
        equation: The scatter.
        inputs: Its operands, the first of them with `rows` rows.
        full: As for `evaluate_rows`.
        rows: Likewise.
        first: Likewise; not None unless the updates have rows.
        has_rows: Whether the updates have `rows` rows.
    """
    operand, indices, updates = inputs
    numbers, mode = equation.params["dimension_numbers"], equation.params["mode"]
    if _is_for_all_rows(equation):
        (result,) = bind(equation, [operand, indices, updates if has_rows else updates[first : first + rows]])  # type: ignore[operator]
        return result
    assert first is not None
    if 0 in numbers.inserted_window_dims and 0 in numbers.scatter_dims_to_operand_dims and mode in _DROPPING:
        column = numbers.scatter_dims_to_operand_dims.index(0)
        indices = jnp.asarray(indices, jnp.promote_types(indices.dtype, jnp.int32)).at[..., column].add(-first)
        (result,) = bind(equation, [operand, indices, updates], mode=GatherScatterMode.FILL_OR_DROP)
        return result
    # Slices over rows and the like: as if the other rows were here, whatever they hold.
    whole = jnp.zeros((full, *operand.shape[1:]), operand.dtype)
    (result,) = bind(equation, [jax.lax.dynamic_update_slice_in_dim(whole, operand, first, 0), indices, updates])
    return result[first : first + rows]


def _adapted(
    equation: Any, touched: Sequence[bool], full: int, rows: int, first: int | None
) -> tuple[dict[str, Any], bool]:
    """Returns the parameters of an equation that change with the number of rows, and whether its result has rows."""
    name, params = equation.primitive.name, equation.params
    if name == "broadcast_in_dim" and not touched[0] and first is not None:
        return {}, False  # Of the result, whatever it is for, rows are taken where they are combined with others.
    if name == "broadcast_in_dim":
        return _broadcast(equation, touched[0], full, rows)
    if not any(touched):
        of_all_rows = any(tuple(out.aval.shape[:1]) == (full,) for out in equation.outvars)
        if first is None and of_all_rows and not equation.invars:
            raise _refused(equation)
        return {}, False
    if name in BY_ELEMENT and _all_have_rows(equation, touched):
        return {}, True
    if name in ALL_REDUCTIONS and 0 not in params["axes"]:
        return {}, True
    if name == "reshape" and params["new_sizes"][:1] == (full,) and not params["dimensions"]:
        return {"new_sizes": (rows, *params["new_sizes"][1:])}, True
    if name == "squeeze" and 0 not in params["dimensions"]:
        return {}, True
    if name == "slice" and _takes_all_rows(params, full):
        return {"limit_indices": (rows, *params["limit_indices"][1:])}, True
    if name == "transpose" and params["permutation"][0] == 0:
        return {}, True
    if name == "concatenate" and params["dimension"] != 0 and all(touched):
        return {}, True
    if name in CUMULATIVE and params["axis"] != 0:
        return {}, True
    raise _refused(equation)


def _takes_all_rows(params: dict[str, Any], full: int) -> bool:
    """Returns whether a slice is one of columns and the like."""
    first, end, strides = params["start_indices"][0], params["limit_indices"][0], params["strides"]
    return first == 0 and end == full and (strides is None or strides[0] == 1)


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
