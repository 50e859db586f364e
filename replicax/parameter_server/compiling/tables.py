"""Tables: large variables of which a step reads and changes only a few rows, such as embeddings.

If a worker's half only looks rows up in a variable, the worker pulls those rows and no others: the look-ups are
rewritten to a small table of the rows that the batch needs. In the backward pass JAX adds the rows' gradients to zeros
of the variable's shape; they become a small table too, and only that is sent. Operations on it in between (scaling,
clipping, also by a norm) must map zeros to zeros. A variable that is used in another way is pulled completely.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import jax
from jax.extend.core import JaxprEqn, Literal, Var

from replicax.compat.jax_names import BY_ELEMENT, KEEP_ZEROS
from replicax.program.ir.jaxprs import Atom, Values, aval_of, bind, evaluate, is_literal, leading_to, read

MIN_BYTES = 1 << 16  # A smaller variable is cheaper to send completely.


class Table:
    """How a step uses a variable as a table; `NotATableError` if it uses it otherwise."""

    def __init__(self, equations: Sequence[JaxprEqn], outvars: set[Var], variable: Var, gradient: Var | None):
        self._equations, self._shape = equations, aval_of(variable).shape
        self.rows: int = self._shape[0]
        # The values with a row for each row of the variable: whether rows that are not looked up are zero.
        self.by_row: dict[Var, bool] = {}
        # The look-ups' index arrays, `(..., 1)`: whether indices out of range are clipped, rather than dropped or NaN.
        self.indices: dict[Var, bool] = {}
        self._producer = {out: equation for equation in equations for out in equation.outvars}
        self._outvars = outvars
        self._follow(variable)
        if gradient is not None:
            self._trace_back(gradient)
            if not self.by_row[gradient]:
                raise NotATableError
        if any(value in outvars and value is not gradient for value in self.by_row):
            raise NotATableError

    def _follow(self, variable: Var) -> None:
        """Follows the variable to its look-ups."""
        self.by_row[variable] = False
        for equation in self._equations:
            touched = [atom for atom in _values(equation) if atom in self.by_row]
            if not touched:
                continue
            if equation.primitive.name == "gather" and _by_rows(equation, "collapsed_slice_dims", "start_index_map"):
                if equation.params["slice_sizes"] != (1, *self._shape[1:]) or touched != [equation.invars[0]]:
                    raise NotATableError
                self._look_up(equation)
            elif equation.primitive.name in BY_ELEMENT and len(touched) == 1 and _is_alone(equation):
                self.by_row[equation.outvars[0]] = False
            else:
                raise NotATableError

    def _look_up(self, equation: JaxprEqn) -> None:
        index = equation.invars[1]
        if isinstance(index, Literal):
            raise NotATableError
        clips = "FILL_OR_DROP" not in str(equation.params["mode"])
        if self.indices.setdefault(index, clips) != clips:
            raise NotATableError

    @property
    def capacity(self) -> int:
        """The most distinct rows that are looked up."""
        look_ups: int = sum(math.prod(aval_of(index).shape[:-1]) for index in self.indices)
        return min(self.rows, look_ups)

    def _trace_back(self, gradient: Var) -> None:
        """Goes back from the gradient to where rows were added up, and forward to everything made of them."""
        found: set[Var] = set()
        todo = [gradient]
        while todo:
            value = todo.pop()
            if value in found or aval_of(value).shape[:1] != self._shape[:1]:
                continue
            found.add(value)
            equation = self._producer.get(value)
            if equation is None:
                raise NotATableError
            if equation.primitive.name == "scatter-add":
                self._look_up(equation)
                todo += [atom for atom in equation.invars[:1] if isinstance(atom, Var)]
            else:
                todo += _values(equation)
        side: set[Var] = set()
        for equation in self._equations:
            if any(out in found for out in equation.outvars) or any(atom in side for atom in _values(equation)):
                self._classify(equation, found, side)
                side.update(out for out in equation.outvars if out in self.by_row)

    def _classify(self, equation: JaxprEqn, found: set[Var], side: set[Var]) -> None:
        name, (out, *_) = equation.primitive.name, equation.outvars
        operands = [atom for atom in _values(equation) if atom in side]
        if name == "broadcast_in_dim" and out in found and is_literal(equation.invars[0]):
            self.by_row[out] = _is_zero(equation.invars[0])
        elif name == "scatter-add" and operands == [equation.invars[0]]:
            if not _by_rows(equation, "inserted_window_dims", "scatter_dims_to_operand_dims"):
                raise NotATableError
            self.by_row[out] = self.by_row[operands[0]]
        elif name in BY_ELEMENT and operands and all(a in side or not aval_of(a).shape for a in _values(equation)):
            self.by_row[out] = self._keeps_zeros(equation)
        elif name == "reduce_sum" and operands and all(self.by_row[atom] for atom in operands):
            if 0 not in equation.params["axes"]:
                raise NotATableError
        else:
            raise NotATableError

    def _keeps_zeros(self, equation: JaxprEqn) -> bool:
        name = equation.primitive.name
        zero = [self.by_row.get(a, False) if isinstance(a, Var) else _is_zero(a) for a in equation.invars]
        if name in ("mul", "and"):
            return any(zero)
        if name == "div":
            return zero[0]
        if name == "integer_pow":
            return bool(zero[0] and equation.params["y"] > 0)
        if name == "select_n":
            return all(zero[1:])
        if name == "clamp":
            least, _, most = equation.invars
            return zero[1] and is_literal(least) and is_literal(most) and bool(least.val <= 0 <= most.val)
        return name in KEEP_ZEROS and all(zero)


class NotATableError(Exception):
    """A variable is not used as a table; users never see this error."""


def find_table(
    step_equations: Sequence[JaxprEqn],
    outvars: set[Var],
    variable: Var,
    gradient: Var | None,
    min_bytes: int = MIN_BYTES,
) -> Table | None:
    """Returns how a step uses a variable as a table; None if it is small, or used otherwise."""
    aval = aval_of(variable)
    if len(aval.shape) < 2 or math.prod(aval.shape) * aval.dtype.itemsize < min_bytes:
        return None
    try:
        table = Table(step_equations, outvars, variable, gradient)
    except NotATableError:
        return None
    return table if table.indices else None


def evaluate_with_tables(
    equations: Sequence[JaxprEqn],
    values: Values,  # of tables, their rows
    tables: Sequence[Table],
    capacities: Sequence[int],  # number of rows of each small table
    positions: Sequence[Mapping[Var, jax.Array]],  # for each table and index array, of the rows in the small table
) -> None:
    """Evaluates the worker's half with small tables in the place of the variables; adds the results to `values`."""
    owner = {value: i for i, table in enumerate(tables) for value in table.by_row}
    for equation in equations:
        inputs, changes = [read(atom, values) for atom in equation.invars], dict[str, object]()
        touched = [owner[a] for a in [*_values(equation), *equation.outvars] if a in owner]
        if touched:
            name = equation.primitive.name
            if name in ("gather", "scatter-add") and equation.invars[0] in owner:
                index = equation.invars[1]
                assert isinstance(index, Var)  # As `Table` has seen to.
                inputs[1] = positions[touched[0]][index]
            elif name == "broadcast_in_dim":
                changes["shape"] = (capacities[touched[0]], *equation.params["shape"][1:])
        values.update(zip(equation.outvars, bind(equation, inputs, **changes), strict=True))


def index_program(
    equations: Sequence[JaxprEqn], wanted: Sequence[Var], invars: Sequence[Var], consts: Values
) -> Callable[[list[jax.Array]], list[jax.Array]] | None:
    """Returns a function of the step's own inputs that computes index arrays; None if they depend on variables."""
    chosen, needed = leading_to(equations, wanted)
    made = {out for equation in chosen for out in equation.outvars}
    if needed - made - set(invars) - consts.keys():
        return None

    def indices(inputs: list[jax.Array]) -> list[jax.Array]:
        values = dict(zip(invars, inputs, strict=True)) | consts
        evaluate(chosen, values)
        return [values[each] for each in wanted]

    return indices


def moves_untouched_rows(
    update: Callable[[Sequence[jax.Array], jax.Array], Sequence[jax.Array]],  # `(state, gradient)`, of two rows each
    state: Sequence[jax.ShapeDtypeStruct],
    gradient: jax.ShapeDtypeStruct,
) -> bool:
    """Returns whether an update changes rows whose gradient is zero, as Adam's momentum does; found out by trying."""
    keys = jax.random.split(jax.random.key(0), len(state))
    tried = [
        jax.random.uniform(key, each.shape, minval=0.5, maxval=1.5).astype(each.dtype)
        for key, each in zip(keys, state, strict=True)
    ]
    new = update(tried, jax.numpy.zeros(gradient.shape, gradient.dtype))
    return any(bool((a != b).any()) for a, b in zip(new, tried, strict=True))


def _values(equation: JaxprEqn) -> list[Var]:
    return [atom for atom in equation.invars if isinstance(atom, Var)]


def _is_alone(equation: JaxprEqn) -> bool:
    """Returns whether all other operands are scalars."""
    return sum(bool(aval_of(atom).shape) for atom in equation.invars) == 1


def _is_zero(atom: Atom) -> bool:
    return is_literal(atom) and not aval_of(atom).shape and float(atom.val) == 0.0


def _by_rows(equation: JaxprEqn, collapsed: str, mapped: str) -> bool:
    numbers = equation.params["dimension_numbers"]
    return (
        getattr(numbers, collapsed) == (0,) and getattr(numbers, mapped) == (0,) and not numbers.operand_batching_dims
    )
