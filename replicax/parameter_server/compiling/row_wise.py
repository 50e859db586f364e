"""Evaluates an update on some rows of a variable, which is possible where each new row depends on the same row only.

A sharded variable is updated shard by shard, and of a large table only the rows that a step has looked up are updated.
Both are right for updates that work element by element, or row by row: SGD, Adam, Adagrad, clipping by value. Where
some entries are updated (`v.at[rows].add(changes)`), each shard takes the changes of its own rows. An update that needs
the norm of the whole variable is refused, with the name of the operation that mixes rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.extend.core import JaxprEqn, Var
from jax.lax import GatherScatterMode

from replicax.compat.jax_names import ALL_REDUCTIONS, BY_ELEMENT, CUMULATIVE, SCATTERS
from replicax.errors import ProgramError
from replicax.program.ir.interpreter import Interpreter, bind
from replicax.program.ir.jaxprs import Atom, Values, aval_of, is_one_of

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
    _RowWise(by_row, full, rows, first)(equations, values)


class _RowWise(Interpreter):
    def __init__(self, by_row: set[Var], full: int, rows: int, first: int | None):
        rules = dict.fromkeys([*BY_ELEMENT, "concatenate"], self._combined) | dict.fromkeys(SCATTERS, self._scattered)
        super().__init__(rules | {"broadcast_in_dim": self._broadcast}, other=self._kept)
        self._by_row, self._full, self._rows, self._first = by_row, full, rows, first

    def _touched(self, equation: JaxprEqn) -> list[bool]:
        return [isinstance(atom, Var) and atom in self._by_row for atom in equation.invars]

    def _own(self, whole: jax.Array) -> jax.Array:
        assert self._first is not None
        return whole[self._first : self._first + self._rows]

    def _with_rows(self, equation: JaxprEqn, results: Sequence[jax.Array]) -> Sequence[jax.Array]:
        self._by_row.update(equation.outvars)
        return results

    def _combined(self, equation: JaxprEqn, inputs: list[jax.Array]) -> Sequence[jax.Array]:
        touched = self._touched(equation)
        if self._first is not None and any(touched):
            for i, atom in enumerate(equation.invars):
                if not touched[i] and tuple(aval_of(atom).shape[:1]) == (self._full,):
                    inputs[i], touched[i] = self._own(inputs[i]), True
        if not any(touched):
            return self._kept(equation, inputs)
        if is_one_of(equation, BY_ELEMENT):
            fits = _all_have_rows(equation, touched)
        else:
            fits = equation.params["dimension"] != 0 and all(touched)
        if not fits:
            raise _refused(equation)
        return self._with_rows(equation, bind(equation, inputs))

    def _broadcast(self, equation: JaxprEqn, inputs: list[jax.Array]) -> Sequence[jax.Array]:
        [touched, *_], full = self._touched(equation), self._full
        shape, dimensions = equation.params["shape"], equation.params["broadcast_dimensions"]
        if touched and (not dimensions or dimensions[0] != 0 or shape[0] != full):
            raise _refused(equation)
        if not touched:
            is_whole = not shape or shape[0] != full or (0 in dimensions and _rows_of(equation.invars[0]) != 1)
            # Rows of the result are taken where it is combined with other values.
            if is_whole or self._first is not None:
                return bind(equation, inputs)
        return self._with_rows(equation, bind(equation, inputs, shape=(self._rows, *shape[1:])))

    def _kept(self, equation: JaxprEqn, inputs: list[jax.Array]) -> Sequence[jax.Array]:
        """The rule for what keeps rows as they are, or has none."""
        if any(self._touched(equation)):
            rule = _KEEP_ROWS.get(equation.primitive.name)
            changes = None if rule is None else rule(equation.params, self._full, self._rows)
            if changes is None:
                raise _refused(equation)
            return self._with_rows(equation, bind(equation, inputs, **changes))
        of_all_rows = any(tuple(aval_of(out).shape[:1]) == (self._full,) for out in equation.outvars)
        if self._first is None and of_all_rows and not equation.invars:
            raise _refused(equation)
        return bind(equation, inputs)

    def _scattered(self, equation: JaxprEqn, inputs: list[jax.Array]) -> Sequence[jax.Array]:
        """The rule for scatters: updates of rows that are not here are dropped."""
        first, touched, is_for_all = self._first, self._touched(equation), _is_for_all_rows(equation)
        if touched[1] or not touched[0] or (not is_for_all if touched[2] else first is None):
            return self._kept(equation, inputs)
        operand, indices, updates = inputs
        if is_for_all:
            return self._with_rows(
                equation, bind(equation, [operand, indices, updates if touched[2] else self._own(updates)])
            )
        assert first is not None
        numbers, mode = equation.params["dimension_numbers"], equation.params["mode"]
        if 0 in numbers.inserted_window_dims and 0 in numbers.scatter_dims_to_operand_dims and mode in _DROPPING:
            column = numbers.scatter_dims_to_operand_dims.index(0)
            indices = jnp.asarray(indices, jnp.promote_types(indices.dtype, jnp.int32)).at[..., column].add(-first)
            results = bind(equation, [operand, indices, updates], mode=GatherScatterMode.FILL_OR_DROP)
            return self._with_rows(equation, results)
        # Slices over rows and the like: evaluated as if the other rows were here, with any values.
        whole = jnp.zeros((self._full, *operand.shape[1:]), operand.dtype)
        whole = jax.lax.dynamic_update_slice_in_dim(whole, operand, first, 0)
        [result] = bind(equation, [whole, indices, updates])
        return self._with_rows(equation, [self._own(result)])


_Changes: TypeAlias = dict[str, object] | None


def _reshaped(params: Mapping[str, Any], full: int, rows: int) -> _Changes:
    sizes = params["new_sizes"]
    return {"new_sizes": (rows, *sizes[1:])} if sizes[:1] == (full,) and not params["dimensions"] else None


def _sliced(params: Mapping[str, Any], full: int, rows: int) -> _Changes:
    starts, ends, strides = params["start_indices"], params["limit_indices"], params["strides"]
    takes_all = starts[0] == 0 and ends[0] == full and (strides is None or strides[0] == 1)
    return {"limit_indices": (rows, *ends[1:])} if takes_all else None


# By the names of operations on values with rows, (parameters, rows of the program, rows here) -> the parameters that
# depend on the number of rows; None if the operation mixes rows.
_KEEP_ROWS: dict[str, Callable[[Mapping[str, Any], int, int], _Changes]] = {
    "reshape": _reshaped,
    "slice": _sliced,
    "squeeze": lambda params, full, rows: {} if 0 not in params["dimensions"] else None,
    "transpose": lambda params, full, rows: {} if params["permutation"][0] == 0 else None,
}
_KEEP_ROWS |= dict.fromkeys(ALL_REDUCTIONS, lambda params, full, rows: {} if 0 not in params["axes"] else None)
_KEEP_ROWS |= dict.fromkeys(CUMULATIVE, lambda params, full, rows: {} if params["axis"] != 0 else None)


def has_entries_of_its_own(equations: Iterable[JaxprEqn], value: Var) -> bool:
    """Returns whether a value goes into a scatter as indices or updates: its first dimension is not that of rows."""
    following = {value}
    for equation in equations:
        touched = [isinstance(atom, Var) and atom in following for atom in equation.invars]
        if any(touched):
            following.update(equation.outvars)
            if is_one_of(equation, SCATTERS) and (touched[1] or (touched[2] and not _is_for_all_rows(equation))):
                return True
    return False


def _is_for_all_rows(equation: JaxprEqn) -> bool:
    """Returns whether a scatter's updates have the operand's rows, as in `x.at[:, 1].add(updates)`."""
    numbers, (operand, _, updates) = equation.params["dimension_numbers"], equation.invars
    chosen = {*numbers.scatter_dims_to_operand_dims, *numbers.inserted_window_dims, *numbers.operand_batching_dims}
    is_first = 0 not in chosen and numbers.update_window_dims[:1] == (0,)
    return is_first and bool(aval_of(updates).shape[:1] == aval_of(operand).shape[:1])


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
