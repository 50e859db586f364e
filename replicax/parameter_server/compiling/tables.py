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
from replicax.program.ir.graph import Graph
from replicax.program.ir.interpreter import Interpreter, bind, evaluate
from replicax.program.ir.jaxprs import Atom, Values, aval_of, is_literal, is_one_of, variables_of

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
        self._graph = Graph(equations)
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
            touched = [atom for atom in variables_of(equation.invars) if atom in self.by_row]
            if not touched:
                continue
            if is_one_of(equation, _LOOK_UPS) and _by_rows(equation, "collapsed_slice_dims", "start_index_map"):
                if equation.params["slice_sizes"] != (1, *self._shape[1:]) or touched != [equation.invars[0]]:
                    raise NotATableError
                self._look_up(equation)
            elif is_one_of(equation, BY_ELEMENT) and len(touched) == 1 and _is_alone(equation):
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
            equation = self._graph.producer.get(value)
            if equation is None:
                raise NotATableError
            if is_one_of(equation, _ADDING_UP):
                self._look_up(equation)
                todo += variables_of(equation.invars[:1])
            else:
                todo += variables_of(equation.invars)
        side: set[Var] = set()
        for equation in self._equations:
            operands = variables_of(equation.invars)
            if not found.isdisjoint(equation.outvars) or not side.isdisjoint(operands):
                self._classify(equation, found, side)
                side.update(out for out in equation.outvars if out in self.by_row)

    def _classify(self, equation: JaxprEqn, found: set[Var], side: set[Var]) -> None:
        inputs, (out, *_) = equation.invars, equation.outvars
        operands = [atom for atom in variables_of(inputs) if atom in side]
        are_zero = bool(operands) and all(self.by_row[atom] for atom in operands)
        if is_one_of(equation, _SPREADING) and out in found and is_literal(inputs[0]):
            self.by_row[out] = _is_zero(inputs[0])
        elif is_one_of(equation, _ADDING_UP) and operands == [inputs[0]]:
            if not _by_rows(equation, "inserted_window_dims", "scatter_dims_to_operand_dims"):
                raise NotATableError
            self.by_row[out] = self.by_row[operands[0]]
        elif (
            is_one_of(equation, BY_ELEMENT)
            and operands
            and all(a in side or not aval_of(a).shape for a in variables_of(inputs))
        ):
            zeros = [self.by_row.get(a, False) if isinstance(a, Var) else _is_zero(a) for a in inputs]
            rule = _ZEROS.get(equation.primitive.name)
            keeps = is_one_of(equation, KEEP_ZEROS) and all(zeros)
            self.by_row[out] = keeps if rule is None else rule(equation, zeros)
        elif not is_one_of(equation, _ADDING_ROWS) or 0 not in equation.params["axes"] or not are_zero:
            raise NotATableError


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
    owner: dict[Atom, int] = {value: i for i, table in enumerate(tables) for value in table.by_row}

    def by_position(equation: JaxprEqn, inputs: list[jax.Array]) -> Sequence[jax.Array]:
        table, index = owner.get(equation.invars[0]), equation.invars[1]
        if table is not None:
            assert isinstance(index, Var)  # As `Table` has seen to.
            inputs[1] = positions[table][index]
        return bind(equation, inputs)

    def zeros(equation: JaxprEqn, inputs: list[jax.Array]) -> Sequence[jax.Array]:
        table, shape = owner.get(equation.outvars[0]), equation.params["shape"]
        return bind(equation, inputs, shape=shape if table is None else (capacities[table], *shape[1:]))

    rules = {"gather": by_position, "scatter-add": by_position, "broadcast_in_dim": zeros}
    Interpreter(rules)(equations, values)


def index_program(
    equations: Sequence[JaxprEqn], wanted: Sequence[Var], invars: Sequence[Var], consts: Values
) -> Callable[[list[jax.Array]], list[jax.Array]] | None:
    """Returns a function of the step's own inputs that computes index arrays; None if they depend on variables."""
    chosen, needed = Graph(equations).leading_to(wanted)
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


def _is_alone(equation: JaxprEqn) -> bool:
    """Returns whether all other operands are scalars."""
    return sum(bool(aval_of(atom).shape) for atom in equation.invars) == 1


def _is_zero(atom: Atom) -> bool:
    return is_literal(atom) and not aval_of(atom).shape and float(atom.val) == 0.0


def _clamps_zero_to_zero(equation: JaxprEqn, zeros: Sequence[bool]) -> bool:
    least, _, most = equation.invars
    return zeros[1] and is_literal(least) and is_literal(most) and bool(least.val <= 0 <= most.val)


_LOOK_UPS, _SPREADING, _ADDING_UP, _ADDING_ROWS = ["gather"], ["broadcast_in_dim"], ["scatter-add"], ["reduce_sum"]
# Whether a result is zero where some operands are; otherwise see `KEEP_ZEROS`.
_ZEROS: dict[str, Callable[[JaxprEqn, Sequence[bool]], bool]] = {
    "mul": lambda equation, zeros: any(zeros),
    "and": lambda equation, zeros: any(zeros),
    "div": lambda equation, zeros: zeros[0],
    "integer_pow": lambda equation, zeros: zeros[0] and equation.params["y"] > 0,
}
_ZEROS |= {"select_n": lambda equation, zeros: all(zeros[1:]), "clamp": _clamps_zero_to_zero}


def _by_rows(equation: JaxprEqn, collapsed: str, mapped: str) -> bool:
    numbers = equation.params["dimension_numbers"]
    return (
        getattr(numbers, collapsed) == (0,) and getattr(numbers, mapped) == (0,) and not numbers.operand_batching_dims
    )
