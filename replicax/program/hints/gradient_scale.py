"""Finds gradients that are too large by the number of replicas, in the traced program of one replica.

Gradients that are summed over replicas belong to a loss that is divided by the *global* number of rows. A loss that is
a mean over the replica's own rows shows in the program: on the way from the loss back to where the rows are added up it
is divided by how many numbers are added, and by nothing else. The search follows that way through sums, scalar factors
and calls, and gives up (that is, finds nothing) at everything that it does not know.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core as jex_core

import replicax.context as context
from replicax.compat.jax import axes_of_type, is_random_key, vary
from replicax.compat.jax_equations import bind
from replicax.compat.jax_names import (
    ADDITIONS,
    ARITHMETIC,
    KEEP_NUMBERS,
    LOOPS,
    REDUCTIONS,
    TAKE_PARTS,
)
from replicax.program.ir.jaxprs import SUMMED_LOSS, Atom, aval_of, is_gradient, is_literal, is_one_of
from replicax.program.ir.scopes import Constant, ProgramScope, equations_of
from replicax.runtime.mesh import REPLICA_AXIS

_LARGEST_CONSTANT = 64  # numbers; a shape has fewer


@dataclasses.dataclass(frozen=True)
class LocalMean:
    """A loss that is a mean over the replica's rows, with gradients that are summed over replicas."""

    divisor: float | None  # of the sum over rows; None for a number that each replica computes from its own rows


def share_of_sum(part: jax.Array) -> jax.Array:
    """Returns a replica's part of a sum over replicas, typed as its own: one that is equal on all counts on each."""
    return vary(part, REPLICA_AXIS) if (context.current().manual_replicas or 1) > 1 else part


def find_local_mean(top: ProgramScope, search: Search, replicas: int) -> LocalMean | None:
    """Looks for a marked loss that is a mean over the replica's own rows."""
    for scope, equation in equations_of(top):
        if SUMMED_LOSS.is_on(equation):
            found = search.local_mean(scope, equation.invars[0])
            if found is not None and not _divides_gradients(top, replicas):
                return found
    return None


class _Way(enum.Enum):
    """How a value has been reached from one whose first dimension may be the rows."""

    FIRST = "the rows would be its first dimension"
    PART = "some part of it; counts if a loop makes it"
    LOOP = "it goes into a loop, in which dimensions are not followed"


class Search:
    """Follows values back through a program."""

    def __init__(self, rows: Sequence[int | None], replicas: int):
        self._rows, self._replicas = rows, replicas  # for each argument its rows of the batch; None: it is no batch
        self._sizes = {size for size in rows if size}
        self._rules = dict.fromkeys(KEEP_NUMBERS, self._kept) | dict.fromkeys(ADDITIONS, self._added)
        self._rules |= {"neg": self._negated, "mul": self._multiplied, "div": self._divided}
        self._rules |= {"select_n": self._selected, "reduce_sum": self._summed}

    def local_mean(
        self, scope: ProgramScope, atom: Atom, divisor: float = 1.0, local: bool = False
    ) -> LocalMean | None:
        """Follows a scalar, or what becomes one by sums, back to where rows are added up, if it is their mean."""
        # On the way it has been divided by `divisor`, and if `local` by what each replica computes from its own rows.
        found = scope.maker(atom)
        rule = None if found is None else self._rules.get(found[1].primitive.name)
        return None if found is None or rule is None else rule(*found, divisor, local)

    # Rules: (scope, equation, what its result has been divided by, `local`) -> the mean.

    def _kept(self, scope: ProgramScope, equation: jex_core.JaxprEqn, divisor: float, local: bool) -> LocalMean | None:
        return self.local_mean(scope, equation.invars[0], divisor, local)

    def _negated(
        self, scope: ProgramScope, equation: jex_core.JaxprEqn, divisor: float, local: bool
    ) -> LocalMean | None:
        return self.local_mean(scope, equation.invars[0], -divisor, local)

    def _added(self, scope: ProgramScope, equation: jex_core.JaxprEqn, divisor: float, local: bool) -> LocalMean | None:
        found = (self.local_mean(scope, each, divisor, local) for each in equation.invars)
        return next((each for each in found if each is not None), None)

    def _multiplied(
        self, scope: ProgramScope, equation: jex_core.JaxprEqn, divisor: float, local: bool
    ) -> LocalMean | None:
        for factor, other in (equation.invars, equation.invars[::-1]):
            number = self.constant(scope, factor)
            if number is not None:
                return None if number == 0 else self.local_mean(scope, other, divisor / number, local)
        return None

    def _divided(
        self, scope: ProgramScope, equation: jex_core.JaxprEqn, divisor: float, local: bool
    ) -> LocalMean | None:
        first, second = equation.invars
        number = self.constant(scope, second)
        if number is not None:
            return self.local_mean(scope, first, divisor * number, local)
        return self.local_mean(scope, first, divisor, True) if self._adds_rows(scope, second) else None

    def _selected(
        self, scope: ProgramScope, equation: jex_core.JaxprEqn, divisor: float, local: bool
    ) -> LocalMean | None:
        """Follows a choice between one value and constants, such as the guard of a division by zero."""
        which, *cases = equation.invars
        number = self.constant(scope, which)
        cases = cases if number is None else [cases[int(number)]]
        others = [case for case in cases if self.constant(scope, case) is None]
        return self.local_mean(scope, others[0], divisor, local) if len(others) == 1 else None

    def _summed(
        self, scope: ProgramScope, equation: jex_core.JaxprEqn, divisor: float, local: bool
    ) -> LocalMean | None:
        if self._sums_rows(scope, equation):
            return self._judged(equation, divisor, local)
        return self.local_mean(scope, equation.invars[0], divisor, local)

    def _sums_rows(self, scope: ProgramScope, equation: jex_core.JaxprEqn) -> bool:
        return 0 in equation.params["axes"] and self.has_rows(scope, equation.invars[0])

    def _adds_rows(self, scope: ProgramScope, atom: Atom) -> bool:
        """Returns whether a value is this replica's own sum over its rows, such as the number of those that count."""
        if REPLICA_AXIS not in axes_of_type(atom.aval):
            return False
        while (found := scope.maker(atom)) is not None:
            scope, equation = found
            if is_one_of(equation, ["reduce_sum"]):
                return self._sums_rows(scope, equation)
            if not is_one_of(equation, _KEEP_COUNTS):
                return False
            varying = [a for a in equation.invars if self.constant(scope, a) is None and aval_of(a).dtype != np.bool_]
            if len(varying) != 1:
                return False
            [atom] = varying
        return False

    def _judged(self, equation: jex_core.JaxprEqn, divisor: float, local: bool) -> LocalMean | None:
        shape = aval_of(equation.invars[0]).shape
        added = math.prod(shape[axis] for axis in equation.params["axes"])
        if local:
            return LocalMean(None) if math.isclose(abs(divisor), 1.0, rel_tol=1e-3) else None
        # A sum of as many columns as there are replicas, divided by the global number of rows, looks alike.
        right = any(math.isclose(abs(divisor), size * self._replicas, rel_tol=1e-3) for size in self._sizes)
        is_mean = math.isclose(abs(divisor), added, rel_tol=1e-3) and added > 1
        return LocalMean(abs(divisor)) if is_mean and not right else None

    def has_rows(self, scope: ProgramScope, atom: Atom) -> bool:
        """Returns whether the first dimension of a value is that of the batch's rows."""
        seen: set[tuple[int, Atom, _Way]] = set()
        waiting = [(scope, atom, _Way.FIRST)]
        while waiting:
            used_in, used, way = waiting.pop()
            made_in, made = used_in.origin(used)
            if made_in is None or (id(made_in), made, way) in seen:
                continue
            seen.add((id(made_in), made, way))
            if made in made_in.inputs:
                if self._rows[made_in.inputs[made]] and way is not _Way.PART:
                    return True
                continue
            equation = made_in.producer.get(made)
            if equation is None:
                continue
            if way is _Way.LOOP or is_one_of(equation, LOOPS):
                waiting += [(made_in, operand, _Way.LOOP) for operand in equation.invars]
            elif is_one_of(equation, TAKE_PARTS):
                waiting += [(made_in, operand, _Way.PART) for operand in equation.invars]
            if way is _Way.FIRST and self._may_have_rows(aval_of(made).shape[:1]):
                waiting += [(made_in, operand, _Way.FIRST) for operand in self._with_the_rows(equation, made)]
        return False

    def _may_have_rows(self, lengths: Sequence[int]) -> bool:
        return any(length and length % size == 0 for length in lengths for size in self._sizes)

    def _with_the_rows(self, equation: jex_core.JaxprEqn, out: jex_core.Var) -> list[Atom]:
        """Returns the operands whose rows may be those of a result of an equation."""
        others = _OF_OTHER_ROWS.get(equation.primitive.name)
        if others is not None and others(equation.params):
            return []
        if is_one_of(equation, ["dot_general"]):
            return _dot_operand(equation)
        shapes = [(atom, aval_of(atom).shape) for atom in equation.invars if not is_literal(atom)]
        if is_one_of(equation, ["reshape"]):
            return [atom for atom, shape in shapes if self._may_have_rows(shape[:2])]  # (1, rows): a replica's part
        return [atom for atom, shape in shapes if shape[:1] == aval_of(out).shape[:1]]

    def constant(self, scope: ProgramScope, atom: Atom) -> float | None:
        """Returns the number that a value always is, None if it depends on the arguments."""
        made_in, made = scope.origin(atom)
        if made_in is None:
            return _known_number(made)
        equation = made_in.producer.get(made)
        if equation is None or math.prod(aval_of(made).shape) > 1:
            return None
        if is_one_of(equation, KEEP_NUMBERS):
            number = self.constant(made_in, equation.invars[0])
            return number if number is None else np.asarray(number, aval_of(made).dtype).item()
        if not is_one_of(equation, ARITHMETIC):
            return None
        operands = [self._constant_array(made_in, operand) for operand in equation.invars]
        if not operands or any(operand is None for operand in operands):
            return None
        with jax.ensure_compile_time_eval():
            (value,) = bind(equation, operands, equation.params)
        return _known_number(value)

    def _constant_array(self, scope: ProgramScope, atom: Atom) -> Constant | None:
        made_in, value = scope.origin(atom)
        if made_in is None:
            return None if _is_unknown(value) else value
        number = self.constant(scope, atom)
        return None if number is None else np.asarray(number, aval_of(atom).dtype).reshape(aval_of(atom).shape)


_KEEP_COUNTS = KEEP_NUMBERS | {"max", "add", "select_n"}
# Whether the first dimension of a result is none of the operand's, by the parameters.
_OF_OTHER_ROWS: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    **dict.fromkeys(REDUCTIONS, lambda params: 0 in params["axes"]),
    "transpose": lambda params: params["permutation"][0] != 0,
    "broadcast_in_dim": lambda params: 0 not in params["broadcast_dimensions"][:1],
}


def _known_number(value: Constant | None) -> float | None:
    if value is None or _is_unknown(value) or np.size(value) != 1:
        return None
    number: float = np.asarray(value).reshape(()).item()
    return number


def _is_unknown(value: Constant | None) -> bool:
    """Returns whether a constant's number is unknown: it is large, traced elsewhere, or stands for a variable."""
    if value is None or isinstance(value, jax.core.Tracer) or is_random_key(value):
        return True
    return bool(np.size(value) > _LARGEST_CONSTANT)


def _dot_operand(equation: jex_core.JaxprEqn) -> list[Atom]:
    """Returns the operand of a matrix product that the first dimension of the result comes from, if it is its first."""
    (contracted, _), (batch, _) = equation.params["dimension_numbers"]
    left, right = equation.invars
    if batch:
        return [left] if batch[0] == 0 else []
    if 0 not in contracted:
        return [left]
    every = len(contracted) == len(aval_of(left).shape)
    return [right] if every and 0 not in equation.params["dimension_numbers"][0][1] else []


def _divides_gradients(top: ProgramScope, replicas: int) -> bool:
    """Returns whether some gradient is divided by the number of replicas once more, which makes a mean of the sum."""
    for scope, equation in equations_of(top):
        divisor_of = _DIVISORS.get(equation.primitive.name)
        if divisor_of is None:
            continue
        for value, factor in (equation.invars, equation.invars[::-1]):
            if is_literal(value) or not is_literal(factor) or np.size(factor.val) != 1:
                continue
            number = divisor_of(float(np.asarray(factor.val).reshape(()).real))
            found = scope.maker(value)
            if math.isclose(number, replicas, rel_tol=1e-3) and found is not None and is_gradient(found[1]):
                return True
    return False


_DIVISORS: dict[str, Callable[[float], float]] = {
    "div": lambda number: number,
    "mul": lambda factor: 1 / factor if factor else 0.0,
}
