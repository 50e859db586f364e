"""A step as stages: what each device computes alike on whole values, and what it computes block by block.

In a stage all that can be computed of whole values comes first, then the blocks' part. It ends where sums over the rows
are needed: the blocks' parts are added, and the next stage goes on with the sums. A plain step has two stages, the
gradients and the update; each batch normalization adds one forward and one backward.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import NamedTuple, cast

import jax
from jax.extend import core as jex_core

from replicax.compat.jax_equations import location
from replicax.compat.jax_names import CALLBACKS
from replicax.errors import ProgramError
from replicax.program.blocks.evaluation import blockwise, placed, value_of
from replicax.program.blocks.rules import FIRST, Cut, Dimension, broadcast_anew
from replicax.program.blocks.scans import fitting_cut
from replicax.program.ir.jaxprs import Atom, is_literal, is_one_of, variables_of, with_inner
from replicax.runtime.precision import adding_dtype


class Operation(NamedTuple):
    """An equation, on whole values or on blocks."""

    equation: jex_core.JaxprEqn
    operands: list[Atom]
    results: list[jex_core.Var]
    cut: Cut | None  # None: on whole values


class Part(NamedTuple):
    """The part of a whole value that a block works with."""

    whole: jex_core.Var
    dimension: int
    result: jex_core.Var


class Sum(NamedTuple):
    """The blocks' parts of a value, which are combined."""

    part: jex_core.Var
    combiner: str
    result: jex_core.Var


class Joined(NamedTuple):
    """The blocks of a value, which are put together."""

    blocks: jex_core.Var
    dimension: int
    result: jex_core.Var


@dataclasses.dataclass
class Stage:
    """The computation up to the next sums."""

    whole: list[Operation] = dataclasses.field(default_factory=list)
    blocks: list[Operation | Part] = dataclasses.field(default_factory=list)
    sums: list[Sum] = dataclasses.field(default_factory=list)
    joined: list[Joined] = dataclasses.field(default_factory=list)
    # passed on: whole values, and blocks
    whole_inputs: list[jex_core.Var] = dataclasses.field(default_factory=list)
    whole_outputs: list[jex_core.Var] = dataclasses.field(default_factory=list)
    block_wholes: list[jex_core.Var] = dataclasses.field(default_factory=list)
    block_inputs: list[jex_core.Var] = dataclasses.field(default_factory=list)
    block_outputs: list[jex_core.Var] = dataclasses.field(default_factory=list)


class Plan:
    """The stages of a program."""

    def __init__(self, program: jex_core.ClosedJaxpr, batch: dict[jex_core.Var, int], blocks: int):
        # `program` is flat. `batch` has its arguments that are cut, each with its dimension.
        self.program, self.number = program, blocks
        self._dimension: dict[Atom, int] = {}  # of cut values
        self._level: dict[Atom, int] = {}  # the stage in which a value is known
        self._operation: dict[Atom, Operation] = {}  # what makes a whole value
        self._parts: dict[tuple[Atom, int], jex_core.Var] = {}
        self._wholes: dict[Atom, jex_core.Var] = {}
        self._items: list[tuple[int, Operation | Part | Sum | Joined]] = []
        seen = {var: self._cut(var, dimension) for var, dimension in batch.items()} if blocks > 1 else {}
        for equation in program.jaxpr.eqns:
            if equation.effects or any(is_one_of(each, CALLBACKS) for each in with_inner(equation)):
                raise ProgramError(
                    f"A step of numbers='bitwise' calls the host, or has a mutable array, at {location(equation)}: it "
                    "would do so once for each device, and for each block. Take it out of the step."
                )
            self._add(equation, [seen.get(a, a) if not is_literal(a) else a for a in equation.invars])
        results = [seen.get(a, a) if not is_literal(a) else a for a in program.jaxpr.outvars]
        self.results = [self._whole(atom) for atom in results]
        self.stages = self._staged()

    # Which operations are cut.

    def _add(self, equation: jex_core.JaxprEqn, operands: list[Atom]) -> None:
        dimensions: list[Dimension] = [None if is_literal(a) else self._dimension.get(a) for a in operands]
        if all(each is None for each in dimensions):
            self._add_whole(equation, operands)
            return
        cut = fitting_cut(equation, dimensions, self.number)
        if cut is None:
            self._add_whole(equation, [self._whole(atom) for atom in operands])
            return
        given = [self._wanted(atom, wanted) for atom, wanted in zip(operands, cut.operands, strict=True)]
        level = max(self._known(atom) for atom in given)
        results: list[jex_core.Var] = []
        for out, how in zip(equation.outvars, cut.results, strict=True):
            if isinstance(how, str):
                part = jex_core.Var(out.aval)
                results.append(part)
                self._items.append((level, Sum(part, how, out)))
                self._level[out] = level + 1
            else:
                results.append(out)
                self._dimension[out], self._level[out] = how, level
        # The sums are noted first, and made last.
        position = len(self._items) - sum(isinstance(how, str) for how in cut.results)
        self._items.insert(position, (level, Operation(equation, given, results, cut)))

    def _add_whole(self, equation: jex_core.JaxprEqn, operands: list[Atom]) -> None:
        level = max((self._known(atom) for atom in operands), default=0)
        operation = Operation(equation, operands, list(equation.outvars), None)
        self._items.append((level, operation))
        for out in equation.outvars:
            self._level[out], self._operation[out] = level, operation

    def _known(self, atom: Atom) -> int:
        return 0 if is_literal(atom) else self._level.get(atom, 0)

    def _wanted(self, atom: Atom, wanted: Dimension) -> Atom:
        if wanted is None or wanted == FIRST or is_literal(atom) or atom in self._dimension:
            return atom
        return self._cut(cast(jex_core.Var, atom), wanted)

    def _cut(self, var: jex_core.Var, dimension: int) -> jex_core.Var:
        """Returns the blocks of a whole value."""
        if (var, dimension) in self._parts:
            return self._parts[var, dimension]
        result, level = jex_core.Var(var.aval), self._known(var)
        made = self._operation.get(var)
        item: Operation | Part = Part(var, dimension, result)
        # A whole value that is to be cut is mostly a number that was broadcast: then a block of it is broadcast.
        if made is not None and is_one_of(made.equation, ["broadcast_in_dim"]):
            cut = broadcast_anew(made.equation, dimension, self.number)
            if cut is not None:
                item = Operation(made.equation, made.operands, [result], cut)
        self._items.append((level, item))
        self._dimension[result], self._level[result] = dimension, level
        self._parts[var, dimension], self._wholes[result] = result, var
        return result

    def _whole(self, atom: Atom) -> Atom:
        """Returns a whole value: that of the blocks is put together."""
        if is_literal(atom) or atom not in self._dimension:
            return atom
        if atom not in self._wholes:
            result, level = jex_core.Var(atom.aval), self._level[atom]
            self._items.append((level, Joined(cast(jex_core.Var, atom), self._dimension[atom], result)))
            self._level[result] = level + 1
            self._wholes[atom] = result
        return self._wholes[atom]

    # The stages.

    def _staged(self) -> list[Stage]:
        needed = set(variables_of(self.results))
        kept: list[tuple[int, Operation | Part | Sum | Joined]] = []
        for level, item in reversed(self._items):
            if needed.isdisjoint(_made_by(item)):
                continue
            kept.append((level, item))
            needed.update(_read_by(item))
        stages = [Stage() for _ in range(1 + max((level for level, _ in kept), default=0))]
        for level, item in reversed(kept):
            stage = stages[level]
            if isinstance(item, Sum):
                stage.sums.append(item)
            elif isinstance(item, Joined):
                stage.joined.append(item)
            elif isinstance(item, Part) or item.cut is not None:
                stage.blocks.append(item)
            else:
                stage.whole.append(item)
        wanted = set(variables_of(self.results))
        for stage in reversed(stages):
            self._connect(stage, wanted)
        return stages

    def _connect(self, stage: Stage, wanted: set[jex_core.Var]) -> None:
        """Notes what a stage gets and passes on; `wanted` is what later ones read."""
        made = dict.fromkeys(var for item in stage.blocks for var in _made_by(item))
        ends = {item.part for item in stage.sums} | {item.blocks for item in stage.joined}
        parts = {item.part for item in stage.sums}
        stage.block_outputs = [var for var in made if (var in wanted or var in ends) and var not in parts]
        read = [var for var in _ordered(v for item in stage.blocks for v in _read_by(item)) if var not in made]
        stage.block_inputs = [var for var in read if var in self._dimension]
        stage.block_wholes = [var for var in read if var not in self._dimension]
        # Blocks of earlier stages may be put together only now.
        wanted.update(read)
        wanted.update(ends - made.keys())
        whole = dict.fromkeys(var for item in stage.whole for var in item.results)
        stage.whole_outputs = [var for var in whole if var in wanted]
        stage.whole_inputs = [
            var for var in _ordered(v for item in stage.whole for v in _read_by(item)) if var not in whole
        ]
        wanted.update(stage.whole_inputs)

    # the computation of the stages

    def whole(self, stage: Stage, given: Sequence[jax.Array]) -> list[jax.Array]:
        """Computes a stage's whole values."""
        values = dict(zip(stage.whole_inputs, given, strict=True))
        for item in stage.whole:
            values.update(zip(item.results, blockwise(item.equation, item.operands, None, values), strict=True))
        return [values[var] for var in stage.whole_outputs]

    def block(
        self, stage: Stage, number: jax.Array, wholes: Sequence[jax.Array], given: Sequence[jax.Array]
    ) -> tuple[list[jax.Array], list[jax.Array]]:
        """Computes one block of a stage; returns what is passed on, and its parts of sums, in `adding_dtype`s."""
        values = dict(zip([*stage.block_wholes, *stage.block_inputs], [*wholes, *given], strict=True))
        for item in stage.blocks:
            if isinstance(item, Part):
                values[item.result] = placed(values[item.whole], item.dimension, number, self.number)
                continue
            operands: list[Atom | jax.Array] = list(item.operands)
            assert item.cut is not None
            for i, wanted in enumerate(item.cut.operands):
                if wanted == FIRST:
                    operands[i] = placed(value_of(item.operands[i], values), FIRST, number, self.number)
            results = blockwise(item.equation, operands, item.cut, values, number)
            values.update(zip(item.results, results, strict=True))
        parts = [values[item.part] for item in stage.sums]
        return [values[var] for var in stage.block_outputs], [part.astype(adding_dtype(part.dtype)) for part in parts]


def _ordered(variables: Iterable[jex_core.Var]) -> list[jex_core.Var]:
    return list(dict.fromkeys(variables))


def _made_by(item: Operation | Part | Sum | Joined) -> list[jex_core.Var]:
    return item.results if isinstance(item, Operation) else [item.result]


def _read_by(item: Operation | Part | Sum | Joined) -> list[jex_core.Var]:
    if isinstance(item, Operation):
        return variables_of(item.operands)
    return [item.part if isinstance(item, Sum) else item.blocks if isinstance(item, Joined) else item.whole]
