"""The work of a traced program: floating-point operations, with loops counted as often as they run."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from jax.extend import core as jex_core

from replicax.compat.jax_names import (
    ALL_REDUCTIONS,
    BY_ELEMENT,
    CUMULATIVE,
    ENTERED,
    SHARD_MAP,
    UNKNOWN_WORK,
    WITHOUT_WORK,
)
from replicax.program.ir.jaxprs import Program, aval_of, called_program, opened_program, programs_in

#: The parameter of a `shard_map` that has the axes it maps over: JAX 0.10, and others.
_MAPPED_AXES = ("newly_manual_axes", "manual_axes")


@dataclasses.dataclass(frozen=True)
class Work:
    """All that a program computes, on all devices together."""

    flops: int  # A multiplication and an addition are two operations; each entry of a sum is one.
    lengths: frozenset[int]  # how often the loops run whose length is known
    # Those left out: operations of other languages, algorithms of libraries, exported programs; and loops that run
    # until something is true, whose body counts once.
    unknown: frozenset[str]


def work_of(program: Program) -> Work:
    """Returns the work of a program."""
    counter = _Counter()
    return Work(counter.flops(program), frozenset(counter.lengths), frozenset(counter.unknown))


class _Counter:
    def __init__(self) -> None:
        self.lengths: set[int] = set()
        self.unknown: set[str] = set()

    def flops(self, program: Program) -> int:
        return sum(map(self._of, opened_program(program)[0].eqns))

    def _of(self, equation: jex_core.JaxprEqn) -> int:
        name, params = equation.primitive.name, equation.params
        if name == "scan":
            self.lengths.add(params["length"])
            return int(params["length"]) * self.flops(params["jaxpr"])
        if name == "cond":
            return max(map(self.flops, params["branches"]))
        if name == "while":
            self.unknown.add("while")
            return self.flops(params["body_jaxpr"]) + self.flops(params["cond_jaxpr"])
        if name == SHARD_MAP:
            sizes = dict(params["mesh"].shape)
            axes = next((params[axes] for axes in _MAPPED_AXES if axes in params), sizes)
            return math.prod(sizes[axis] for axis in axes) * self.flops(params["jaxpr"])
        if name in ENTERED:
            called = called_program(equation)
            assert called is not None
            return self.flops(called)
        rule = _RULES.get(name)
        if rule is not None:
            return rule(equation)
        inner = programs_in(equation)
        if inner and name not in ALL_REDUCTIONS and not name.startswith(("scatter", "reduce")):
            self.unknown.add(name)
            return sum(map(self.flops, inner))
        if name in UNKNOWN_WORK:
            self.unknown.add(name)
        return 0


def _is_float(atom: Any) -> bool:
    kind = getattr(aval_of(atom), "dtype", None)
    return kind is not None and (getattr(kind, "kind", "") in "fc" or "float" in getattr(kind, "name", ""))


def _results(equation: jex_core.JaxprEqn) -> int:
    return sum(math.prod(aval_of(out).shape) for out in equation.outvars if _is_float(out))


def _operands(equation: jex_core.JaxprEqn) -> int:
    first = equation.invars[0]
    return math.prod(aval_of(first).shape) if _is_float(first) else 0


def _dot(equation: jex_core.JaxprEqn) -> int:
    (contracted, _), _ = equation.params["dimension_numbers"]
    shape = aval_of(equation.invars[0]).shape
    return 2 * math.prod(aval_of(equation.outvars[0]).shape) * math.prod(shape[axis] for axis in contracted)


def _convolution(equation: jex_core.JaxprEqn) -> int:
    # As if padding and gaps were numbers, too.
    kernel, numbers = aval_of(equation.invars[1]).shape, equation.params["dimension_numbers"]
    each = math.prod(kernel) // kernel[numbers.rhs_spec[0]]
    return 2 * math.prod(aval_of(equation.outvars[0]).shape) * each


_RULES = {
    **dict.fromkeys(BY_ELEMENT - WITHOUT_WORK, _results),
    **dict.fromkeys(ALL_REDUCTIONS | CUMULATIVE, _operands),
    "dot_general": _dot,
    "conv_general_dilated": _convolution,
}
