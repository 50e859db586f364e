"""Checks that what a step makes of a Keras metric's total may be summed over replicas.

A replica starts from its share of the total, and the sum over replicas is the new total (`program/keras/state.py`).
That is right if a step adds something to the total. It is wrong for a maximum, a product or a moving average. The
traced program shows which it is: it is followed back from each value that the metric assigned to the value before.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.extend import core as jex_core

from replicax.compat.jax import axes_of_type, is_random_key
from replicax.compat.jax_equations import location
from replicax.compat.jax_names import ADDITIONS, LARGEST_OR_SMALLEST, MOVE_NUMBERS, NOT_ADDITIVE, ZERO_OF_ZEROS
from replicax.program.ir.jaxprs import SHARE, TOTAL, Atom, aval_of, is_literal, is_one_of, with_inner
from replicax.program.ir.scopes import Constant, ProgramScope, equations_of
from replicax.runtime.mesh import REPLICA_AXIS


@dataclasses.dataclass(frozen=True)
class NotSummable:
    """A total whose parts may not be summed."""

    number: int  # that it was marked with
    reason: str  # what the step makes of it; ends a sentence that begins with "it"
    certain: bool  # whether the sum is certainly something else, or that is only not known


class _Kind(enum.Enum):
    ZERO = "zero"
    FREE = "it does not depend on the total"
    SUM = "the total and something that does not depend on it"


def find_not_summable(top: ProgramScope) -> list[NotSummable]:
    """Returns the totals in a replica's program whose parts may not be summed, the certain ones first."""
    found: dict[int, NotSummable] = {}
    for scope, equation in equations_of(top):
        number = TOTAL.number(equation)
        if number is None:
            continue
        why = _SumSearch(number).judged(scope, equation.invars[0])
        if why is not None and (number not in found or why.certain):
            found[number] = why
    return sorted(found.values(), key=lambda each: not each.certain)


class _SumSearch:
    """Follows one total back through a program, up to the value it had before: a share, or an earlier assignment."""

    def __init__(self, number: int):
        self._number = number
        self._depends: dict[tuple[int, Atom], bool] = {}
        self._rules: dict[str, _Rule] = dict.fromkeys(ADDITIONS, self._added)
        self._rules |= {"select_n": self._selected, "cond": self._branched, "scatter-add": self._scattered}

    def judged(self, scope: ProgramScope, atom: Atom) -> NotSummable | None:
        """Returns why the parts of a value that was assigned to the total may not be summed; None if they may."""
        kind = self._kind(scope, atom)
        if isinstance(kind, NotSummable):
            return kind
        if kind is not _Kind.FREE:
            return None
        if not self._varies(scope, atom):
            return self._no("is assigned a value that is equal on all replicas and would count once for each")
        made_in, made = self._unmoved(scope, atom)
        producer = None if made_in is None else made_in.producer.get(made)
        if producer is not None and is_one_of(producer, LARGEST_OR_SMALLEST):
            return self._no(f"is assigned what `{producer.primitive.name}` makes of each replica's rows alone")
        return self._no("is assigned a value that does not contain its old one", certain=False)

    def _no(self, reason: str, certain: bool = True) -> NotSummable:
        return NotSummable(self._number, reason, certain)

    def _kind(self, scope: ProgramScope, atom: Atom) -> _Kind | NotSummable:
        made_in, made = self._unmoved(scope, atom)
        if made_in is None:
            return _Kind.ZERO if _is_zero(made) else _Kind.FREE
        equation = made_in.producer.get(made)
        if equation is None:
            return _Kind.FREE
        if self._is_mark(equation):
            return _Kind.SUM
        if not self._has_total(made_in, made):
            return self._without_total(made_in, equation)
        return self._with_total(made_in, equation, made)

    def _unmoved(self, scope: ProgramScope | None, atom: Atom) -> tuple[ProgramScope | None, Any]:
        """Returns where a value comes from, before the operations that only move its numbers."""
        while scope is not None:
            scope, atom = scope.origin(atom)
            equation = None if scope is None else scope.producer.get(atom)
            if equation is None or self._is_mark(equation) or not _moves(equation):
                break
            atom = equation.invars[0]
        return scope, atom

    def _varies(self, scope: ProgramScope, atom: Atom) -> bool:
        """Returns whether a value itself varies: JAX also types one as varying because of where it is used."""
        made_in, made = self._unmoved(scope, atom)
        return made_in is not None and REPLICA_AXIS in axes_of_type(made.aval)

    def _without_total(self, scope: ProgramScope, equation: jex_core.JaxprEqn) -> _Kind:
        operands = equation.invars[1:] if is_one_of(equation, ["select_n"]) else equation.invars
        if is_one_of(equation, ZERO_OF_ZEROS) and all(self._kind(scope, each) is _Kind.ZERO for each in operands):
            return _Kind.ZERO
        return _Kind.FREE

    def _with_total(self, scope: ProgramScope, equation: jex_core.JaxprEqn, out: jex_core.Var) -> _Kind | NotSummable:
        rule = self._rules.get(equation.primitive.name, self._other)
        return rule(scope, equation, out)

    # Rules: (scope, equation, that of its results which is followed back) -> its kind.

    def _added(self, scope: ProgramScope, equation: jex_core.JaxprEqn, out: jex_core.Var) -> _Kind | NotSummable:
        first, second = kinds = [self._kind(scope, atom) for atom in equation.invars]
        for kind in kinds:
            if isinstance(kind, NotSummable):
                return kind
        if (first is _Kind.SUM) != (second is _Kind.SUM) and (first is _Kind.SUM or not is_one_of(equation, ["sub"])):
            return _Kind.SUM
        return self._no("is added to itself, or subtracted from something")

    def _selected(self, scope: ProgramScope, equation: jex_core.JaxprEqn, out: jex_core.Var) -> _Kind | NotSummable:
        which, *cases = equation.invars
        return self._chosen(scope, which, [(scope, case) for case in cases])

    def _branched(self, scope: ProgramScope, equation: jex_core.JaxprEqn, out: jex_core.Var) -> _Kind | NotSummable:
        return self._chosen(scope, equation.invars[0], _branches(scope, equation, out))

    def _scattered(self, scope: ProgramScope, equation: jex_core.JaxprEqn, out: jex_core.Var) -> _Kind | NotSummable:
        operand, *others = equation.invars
        if self._has_total(scope, operand) and not any(self._has_total(scope, atom) for atom in others):
            return self._kind(scope, operand)
        return self._other(scope, equation, out)

    def _other(self, scope: ProgramScope, equation: jex_core.JaxprEqn, out: jex_core.Var) -> _Kind | NotSummable:
        others = [atom for atom in equation.invars if not self._has_total(scope, atom)]
        differ = not others or any(self._varies(scope, atom) for atom in others)
        is_certain = differ if is_one_of(equation, _RIGHT_WITH_EQUAL) else is_one_of(equation, NOT_ADDITIVE)
        return self._no(f"goes through `{equation.primitive.name}` ({location(equation)})", certain=is_certain)

    def _chosen(
        self, scope: ProgramScope, which: Atom, cases: Sequence[tuple[ProgramScope, Atom]]
    ) -> _Kind | NotSummable:
        if self._has_total(scope, which):
            return self._no("decides on what is assigned, and each replica sees only its share of it", certain=False)
        kinds = [self._kind(*case) for case in cases]
        for kind in kinds:
            if isinstance(kind, NotSummable):
                return kind
        differs = self._varies(scope, which)
        if _Kind.FREE in kinds or (_Kind.ZERO in kinds and differs):
            return self._no("is replaced on some condition", certain=False)
        return _Kind.SUM

    def _has_total(self, scope: ProgramScope, atom: Atom) -> bool:
        """Returns whether a value depends on the total."""
        root = (id(scope), atom)
        if is_literal(atom):
            return False
        if root not in self._depends:
            self._depends[root] = self._search_for_total(scope, atom)
        return self._depends[root]

    def _search_for_total(self, scope: ProgramScope, atom: Atom) -> bool:
        waiting: list[tuple[ProgramScope, Atom]] = [(scope, atom)]
        seen: set[tuple[int, Atom]] = set()
        while waiting:
            used_in, used = waiting.pop()
            made_in, made = used_in.origin(used)
            if made_in is None or (id(made_in), made) in seen:
                continue
            seen.add((id(made_in), made))
            equation = made_in.producer.get(made)
            if equation is not None:
                if self._shows(equation):
                    return True
                waiting += [(made_in, operand) for operand in equation.invars]
        return False

    def _is_mark(self, equation: jex_core.JaxprEqn) -> bool:
        return self._number in (SHARE.number(equation), TOTAL.number(equation))

    def _shows(self, equation: jex_core.JaxprEqn) -> bool:
        """Returns whether an equation is a mark of the total, or has one inside."""
        return any(map(self._is_mark, with_inner(equation)))


_Rule: TypeAlias = Callable[[ProgramScope, jex_core.JaxprEqn, jex_core.Var], "_Kind | NotSummable"]
# With a number that is equal on all replicas they may be right.
_RIGHT_WITH_EQUAL = ["mul", "div", "max", "min"]


def _moves(equation: jex_core.JaxprEqn) -> bool:
    if is_one_of(equation, ["broadcast_in_dim"]):
        return bool(math.prod(aval_of(equation.invars[0]).shape) == math.prod(aval_of(equation.outvars[0]).shape))
    return is_one_of(equation, MOVE_NUMBERS)


def _branches(scope: ProgramScope, equation: jex_core.JaxprEqn, out: jex_core.Var) -> list[tuple[ProgramScope, Atom]]:
    """Returns what the branches of a `cond` return in the place of one of its results."""
    operands, found = [(scope, atom) for atom in equation.invars[1:]], []
    for branch in equation.params["branches"]:
        inside = ProgramScope(branch.jaxpr, [(None, const) for const in branch.consts], operands)
        found.append((inside, branch.jaxpr.outvars[equation.outvars.index(out)]))
    return found


def _is_zero(value: Constant | None) -> bool:
    known = not isinstance(value, jax.core.Tracer) and value is not None and not is_random_key(value)
    return known and not np.any(np.asarray(value))
