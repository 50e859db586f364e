"""Evaluates an update on some rows of a variable, which is possible where each new row depends on the same row only.

A sharded variable is updated shard by shard, and of a large table only the rows that a step has looked up are updated.
Both are right for updates that work element by element, or row by row: SGD, Adam, Adagrad, clipping by value. Where
some entries are updated (`v.at[rows].add(changes)`), each shard takes the changes of its own rows. An update that needs
the norm of the whole variable is refused, with the name of the operation that mixes rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import jax
import jax.numpy as jnp
from jax.extend.core import JaxprEqn, Var
from jax.lax import GatherScatterMode

from replicax.compat.jax_names import ALL_REDUCTIONS, BY_ELEMENT, CUMULATIVE, SCATTERS
from replicax.errors import ProgramError
from replicax.program.ir.jaxprs import Atom, Values, aval_of, bind, read

_COMBINING = BY_ELEMENT | {"concatenate"}


# These modes treat indices out of range as rows of other shards have to be treated.
_DROPPING = (GatherScatterMode.FILL_OR_DROP, GatherScatterMode.PROMISE_IN_BOUNDS)


class NotByRowsError(ProgramError):
    """An update cannot be evaluated row by row."""


def evaluate_rows(
    equations: Iterable[JaxprEqn],
    values: Values,  # those of `by_row` with `rows` instead of `full` rows
    by_row: set[Var],  # the values whose first dimension is that of rows
    full: int,  # rows of the program
    rows: int,
    first: int | None = None,  # index of the first row, if they are consecutive: constants are sliced alike then
) -> None:
    """Evaluates equations on `rows` of `full` rows; adds the results to `values` and `by_row`."""
    for equation in equations:
        touched = [isinstance(atom, Var) and atom in by_row for atom in equation.invars]
        inputs = [read(atom, values) for atom in equation.invars]
        if first is not None and equation.primitive.name in _COMBINING and any(touched):
            for i, atom in enumerate(equation.invars):
                if not touched[i] and tuple(aval_of(atom).shape[:1]) == (full,):
                    inputs[i], touched[i] = inputs[i][first : first + rows], True
        if equation.primitive.name in SCATTERS and _scatters_by_row(equation, touched, first):
            values[equation.outvars[0]] = _scattered(equation, inputs, full, rows, first, touched[2])
            by_row.add(equation.outvars[0])
            continue
        changes, result_by_row = _adapted(equation, touched, full, rows, first)
        values.update(zip(equation.outvars, bind(equation, inputs, **changes), strict=True))
        if result_by_row:
            by_row.update(equation.outvars)


def has_entries_of_its_own(equations: Iterable[JaxprEqn], value: Var) -> bool:
    """Returns whether a value goes into a scatter as indices or updates: its first dimension is not that of rows."""
    following = {value}
    for equation in equations:
        touched = [isinstance(atom, Var) and atom in following for atom in equation.invars]
        if any(touched):
            following.update(equation.outvars)
            if equation.primitive.name in SCATTERS and (touched[1] or (touched[2] and not _is_for_all_rows(equation))):
                return True
    return False


def _is_for_all_rows(equation: JaxprEqn) -> bool:
    """Returns whether a scatter's updates have the operand's rows, as in `x.at[:, 1].add(updates)`."""
    numbers, (operand, _, updates) = equation.params["dimension_numbers"], equation.invars
    chosen = {*numbers.scatter_dims_to_operand_dims, *numbers.inserted_window_dims, *numbers.operand_batching_dims}
    is_first = 0 not in chosen and numbers.update_window_dims[:1] == (0,)
    return is_first and bool(aval_of(updates).shape[:1] == aval_of(operand).shape[:1])


def _scatters_by_row(equation: JaxprEqn, touched: Sequence[bool], first: int | None) -> bool:
    if touched[1] or not touched[0]:
        return False
    return _is_for_all_rows(equation) if touched[2] else first is not None


def _scattered(
    equation: JaxprEqn, inputs: Sequence[jax.Array], full: int, rows: int, first: int | None, has_rows: bool
) -> jax.Array:
    """Returns the result of a scatter on the rows of this shard; updates of other rows are dropped."""
    operand, indices, updates = inputs
    numbers, mode = equation.params["dimension_numbers"], equation.params["mode"]
    if _is_for_all_rows(equation):
        if not has_rows:
            assert first is not None
            updates = updates[first : first + rows]
        (result,) = bind(equation, [operand, indices, updates])
        return result
    assert first is not None
    if 0 in numbers.inserted_window_dims and 0 in numbers.scatter_dims_to_operand_dims and mode in _DROPPING:
        column = numbers.scatter_dims_to_operand_dims.index(0)
        indices = jnp.asarray(indices, jnp.promote_types(indices.dtype, jnp.int32)).at[..., column].add(-first)
        (result,) = bind(equation, [operand, indices, updates], mode=GatherScatterMode.FILL_OR_DROP)
        return result
    # Slices over rows and the like: evaluated as if the other rows were here, with any values.
    whole = jnp.zeros((full, *operand.shape[1:]), operand.dtype)
    (result,) = bind(equation, [jax.lax.dynamic_update_slice_in_dim(whole, operand, first, 0), indices, updates])
    return result[first : first + rows]


def _adapted(
    equation: JaxprEqn, touched: Sequence[bool], full: int, rows: int, first: int | None
) -> tuple[dict[str, object], bool]:
    """Returns the parameters of an equation that depend on the number of rows, and whether its result has rows."""
    name, params = equation.primitive.name, equation.params
    if name == "broadcast_in_dim" and not touched[0] and first is not None:
        return {}, False  # Rows of the result are taken where it is combined with other values.
    if name == "broadcast_in_dim":
        return _broadcast(equation, touched[0], full, rows)
    if not any(touched):
        of_all_rows = any(tuple(aval_of(out).shape[:1]) == (full,) for out in equation.outvars)
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


def _takes_all_rows(params: Mapping[str, Sequence[int] | None], full: int) -> bool:
    """Returns whether a slice has all rows: one of columns, say."""
    starts, ends, strides = params["start_indices"], params["limit_indices"], params["strides"]
    assert starts is not None
    assert ends is not None
    return starts[0] == 0 and ends[0] == full and (strides is None or strides[0] == 1)


def _broadcast(equation: JaxprEqn, touched: bool, full: int, rows: int) -> tuple[dict[str, object], bool]:
    shape, dimensions = equation.params["shape"], equation.params["broadcast_dimensions"]
    if touched and (not dimensions or dimensions[0] != 0 or shape[0] != full):
        raise _refused(equation)
    if not shape or shape[0] != full or (not touched and 0 in dimensions and _rows_of(equation.invars[0]) != 1):
        return {}, touched
    return {"shape": (rows, *shape[1:])}, True


def _all_have_rows(equation: JaxprEqn, touched: Sequence[bool]) -> bool:
    """Returns whether all operands have rows, or are the same for all of them."""
    pairs = zip(equation.invars, touched, strict=True)
    return all(has_rows or not aval_of(atom).shape or _rows_of(atom) == 1 for atom, has_rows in pairs)


def _rows_of(atom: Atom) -> int:
    rows: int = aval_of(atom).shape[0]
    return rows


def _refused(equation: JaxprEqn) -> NotByRowsError:
    shapes = ", ".join(str(tuple(aval_of(atom).shape)) for atom in equation.invars)
    return NotByRowsError(f"`{equation.primitive.name}` of shapes {shapes} mixes the rows of a variable")
