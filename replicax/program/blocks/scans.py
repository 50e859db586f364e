"""Loops over steps (`jax.lax.scan`), such as those of recurrent layers, in blocks.

Going backward such a loop adds up the gradients of its weights: what it carries is a block's part of a sum over the
rows then, and is one for the whole loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
from jax.extend import core as jex_core

from replicax.compat.jax_equations import scan_counts
from replicax.compat.jax_names import ADDITIONS, PASS_PARTS_ON
from replicax.program.blocks.evaluation import blockwise, placed, value_of
from replicax.program.blocks.rules import FIRST, SAME, Cut, Dimension, cut_of
from replicax.program.ir.jaxprs import Atom, aval_of, is_literal, is_one_of

_SUM = "add"
_WIDER = "preferred_element_type"
#: How a value lies over the blocks: cut along a dimension, a part of a sum, or whole.
_State: TypeAlias = int | str | None


class _Body:
    """The body of a loop in blocks."""

    def __init__(self, program: jex_core.ClosedJaxpr, blocks: int):
        self._program, self._blocks = program, blocks
        self._cuts: list[Cut | None] = []
        self._states: dict[Atom, _State] = {}

    def states(self, inputs: Sequence[_State]) -> list[_State] | None:
        """Returns how the results lie, for how the operands lie; None if something cannot be done in blocks."""
        jaxpr = self._program.jaxpr
        known: dict[Atom, _State] = dict(zip(jaxpr.invars, inputs, strict=True))
        self._cuts = []
        for equation in jaxpr.eqns:
            own = [None if is_literal(atom) else known.get(atom) for atom in equation.invars]
            cut = self._cut(equation, own)
            if cut is None and any(each is not None for each in own):
                return None
            self._cuts.append(cut)
            found: list[_State] = [None] * len(equation.outvars)
            if cut is not None:
                found = [None if how == SAME else how for how in cut.results]
            known.update(zip(equation.outvars, found, strict=True))
        self._states = known
        return [None if is_literal(atom) else known.get(atom) for atom in jaxpr.outvars]

    def _cut(self, equation: jex_core.JaxprEqn, states: Sequence[_State]) -> Cut | None:
        if all(each is None for each in states):
            return None
        name = equation.primitive.name
        if _SUM in states:
            if name in PASS_PARTS_ON and len(states) == 1:
                return Cut([None], [_SUM])
            if name in ADDITIONS and all(each in (None, _SUM) for each in states):
                return Cut([None if each == _SUM else FIRST for each in states], [_SUM])
            if name in ("mul", "div") and states[0] == _SUM and states[1] is None:
                return Cut([None, None], [_SUM])
            if name == "mul" and states[1] == _SUM and states[0] is None:
                return Cut([None, None], [_SUM])
            return None
        dimensions: list[Dimension] = [each if isinstance(each, int) else None for each in states]
        cut = fitting_cut(equation, dimensions, self._blocks)
        if cut is None or any(isinstance(how, str) and how not in (_SUM, SAME) for how in cut.results):
            return None
        # The dtype of what is carried stays.
        return cut._replace(params={key: value for key, value in cut.params.items() if key != _WIDER})

    def __call__(self, number: jax.Array, inputs: Sequence[jax.Array]) -> list[jax.Array]:
        """Evaluates the body on a block."""
        jaxpr = self._program.jaxpr
        values: dict[Any, Any] = dict(
            zip([*jaxpr.constvars, *jaxpr.invars], [*self._program.consts, *inputs], strict=True)
        )
        for equation, cut in zip(jaxpr.eqns, self._cuts, strict=True):
            operands: list[Any] = list(equation.invars)
            if cut is not None:
                operands = [
                    self._wanted(atom, wanted, number, values)
                    for atom, wanted in zip(equation.invars, cut.operands, strict=True)
                ]
            values.update(zip(equation.outvars, blockwise(equation, operands, cut, values, number), strict=True))
        return [value_of(atom, values) for atom in jaxpr.outvars]

    def _wanted(self, atom: Atom, wanted: Dimension, number: jax.Array, values: dict[Any, Any]) -> Any:
        state = None if is_literal(atom) else self._states.get(atom)
        if wanted is None or state is not None or (is_literal(atom) and wanted != FIRST):
            return atom
        return placed(value_of(atom, values), wanted, number, self._blocks)


def fitting_cut(equation: jex_core.JaxprEqn, dimensions: Sequence[Dimension], blocks: int) -> Cut | None:
    """Returns how an equation is worked off in blocks, where its operands are, or can be cut, as that wants them."""
    cut = (cut_of_scan if is_one_of(equation, ["scan"]) else cut_of)(equation, dimensions, blocks)
    if cut is None:
        return None
    for atom, own, wanted in zip(equation.invars, dimensions, cut.operands, strict=True):
        if own is not None and own != wanted:
            return None
        is_to_be_cut = own is None and wanted is not None and wanted != FIRST
        if is_to_be_cut and (is_literal(atom) or aval_of(atom).shape[wanted] % blocks):
            return None
    return cut


def cut_of_scan(equation: jex_core.JaxprEqn, dimensions: Sequence[Dimension], blocks: int) -> Cut | None:
    """Returns how a loop is worked off in blocks; None where it cannot be."""
    params = equation.params
    consts, carried = scan_counts(params)
    first = consts + carried
    if any(each == 0 for each in dimensions[first:]):
        return None  # a loop over the rows
    body = _Body(params["jaxpr"], blocks)
    inside: list[_State] = [*dimensions[:first], *(None if each is None else each - 1 for each in dimensions[first:])]
    while True:
        found = body.states(inside)
        if found is None:
            return None
        carry = inside[consts:first]
        merged = [_merged(a, b) for a, b in zip(carry, found[:carried], strict=True)]
        if any(each is NotImplemented for each in merged):
            return None
        if merged == carry:
            break
        inside = [*inside[:consts], *merged, *inside[first:]]
    # A value that is carried as a part, or cut, and assigned a whole one, is placed so at the end of each round.
    carry = inside[consts:first]
    for atom, own, wanted in zip(equation.invars[consts:first], dimensions[consts:first], carry, strict=True):
        if isinstance(wanted, int) and own is None and aval_of(atom).shape[wanted] % blocks:
            return None
    begun = [each if isinstance(each, int) else None if each is None else FIRST for each in carry]
    stacked = found[carried:]

    def evaluate(number: jax.Array, *inputs: jax.Array) -> Sequence[jax.Array]:
        def round_(state: list[jax.Array], each: list[jax.Array]) -> tuple[list[jax.Array], list[jax.Array]]:
            results = body(number, [*inputs[:consts], *state, *each])
            ended = [
                placed(value, wanted, number, blocks) if own is None else value
                for value, own, wanted in zip(results[:carried], found[:carried], begun, strict=True)
            ]
            return ended, results[carried:]

        ended, collected = jax.lax.scan(
            round_,
            list(inputs[consts:first]),
            list(inputs[first:]),
            length=params["length"],
            reverse=params["reverse"],
            unroll=params["unroll"],
        )
        return [*ended, *collected]

    results: list[int | str] = [SAME if each is None else each for each in carry]
    results += [SAME if each is None else each + 1 if isinstance(each, int) else each for each in stacked]
    operands: list[Dimension] = [*dimensions[:consts], *begun, *dimensions[first:]]
    return Cut(operands, results, evaluate=evaluate)


def _merged(before: _State, after: _State) -> Any:
    if after is None or before == after:
        return before
    return after if before is None else NotImplemented
