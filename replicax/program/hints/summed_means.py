"""Finds gradients of plain `jax.grad` that are too large by the number of replicas.

JAX sums the gradient with respect to a value that is equal on all replicas. Its loss is not marked, but both passes
show in the program: forward, a sum over rows is divided by how many numbers it adds (see `scales.py`); backward, one
divided by the same number is spread over as many numbers, and what follows from that is summed over replicas and not
divided by their number.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from jax.extend import core as jex_core

from replicax.compat.jax import axes_of_type
from replicax.compat.jax_names import KEEP_NUMBERS, UNPACK_NUMBERS
from replicax.program.hints.gradient_scale import LocalMean, ProgramScope, Search, equations_of
from replicax.program.ir.jaxprs import Atom, aval_of, is_gradient, is_literal
from replicax.runtime.mesh import REPLICA_AXIS


def find_summed_mean(top: ProgramScope, search: Search, replicas: int) -> LocalMean | None:
    """Looks for the gradient of a mean over the replica's own rows that is summed over replicas."""
    equations = list(equations_of(top))
    if any(is_gradient(equation) for _, equation in equations):
        return None  # of rx.value_and_grad, which marks its losses
    means = {mean.divisor: mean for mean in _local_means(equations, search) if mean.divisor is not None}
    if not means:
        return None
    averaged = _averaged(equations, replicas)
    for size, mean in means.items():
        flow = _Flow(search, size)
        flow.through(top)
        if any(id(equation) not in averaged for equation in flow.sums):
            return mean
    return None


def _local_means(equations: Sequence[tuple[ProgramScope, jex_core.JaxprEqn]], search: Search) -> Iterator[LocalMean]:
    for scope, equation in equations:
        if equation.primitive.name != "div" or aval_of(equation.outvars[0]).shape:
            continue
        if REPLICA_AXIS in axes_of_type(equation.outvars[0].aval):
            found = search.local_mean(scope, equation.outvars[0])
            if found is not None:
                yield found


class _Flow:
    """The values that follow from spreading `1 / size` over `size` numbers."""

    def __init__(self, search: Search, size: float):
        self._search, self._size = search, size
        self._reached: set[tuple[int, Atom]] = set()
        self.sums: list[jex_core.JaxprEqn] = []  # the sums over replicas of what follows

    def through(self, scope: ProgramScope) -> None:
        """Follows the values through a program and what it calls."""
        for equation in scope.jaxpr.eqns:
            reached = [not is_literal(atom) and (id(scope), atom) in self._reached for atom in equation.invars]
            inner = scope.called(equation)
            if inner is not None:
                self._reached |= {(id(inner), var) for var, hit in zip(inner.jaxpr.invars, reached, strict=True) if hit}
                self.through(inner)
                outs = zip(equation.outvars, inner.jaxpr.outvars, strict=True)
                self._reached |= {
                    (id(scope), out) for out, var in outs if not is_literal(var) and (id(inner), var) in self._reached
                }
            elif any(reached) or self._is_spread(scope, equation):
                self._reached |= {(id(scope), out) for out in equation.outvars}
                if any(reached) and _is_sum_over_replicas(equation):
                    self.sums.append(equation)

    def _is_spread(self, scope: ProgramScope, equation: jex_core.JaxprEqn) -> bool:
        if equation.primitive.name != "broadcast_in_dim" or aval_of(equation.invars[0]).shape:
            return False
        if not math.isclose(math.prod(aval_of(equation.outvars[0]).shape), self._size):
            return False
        number = self._search.constant(scope, equation.invars[0])
        return number is not None and math.isclose(abs(number) * self._size, 1.0, rel_tol=1e-3)


def _is_sum_over_replicas(equation: jex_core.JaxprEqn) -> bool:
    return equation.primitive.name.startswith("psum") and REPLICA_AXIS in equation.params.get("axes", ())


def _averaged(equations: Sequence[tuple[ProgramScope, jex_core.JaxprEqn]], replicas: int) -> set[int]:
    """Returns the sums over replicas that are divided by the number of replicas afterwards, by their ids."""
    divisions: Counter[int] = Counter()
    # A weight that the loss itself divides by that number, as in `0.5 * w` on two replicas, has its gradient divided by
    # it, once: that makes no average.
    by_the_loss: Counter[tuple[int, ...]] = Counter()
    for scope, equation in equations:
        if equation.primitive.name == "pvary" and _is_divided(scope, equation.invars[0], replicas):
            by_the_loss[aval_of(equation.outvars[0]).shape] += 1
        for value, number in _scaled(scope, equation):
            if number == replicas:
                divisions.update(set(_sums_behind(scope, value)))
    shapes = {
        id(equation): aval_of(equation.outvars[0]).shape for _, equation in equations if id(equation) in divisions
    }
    once = Counter(shapes[each] for each, times in divisions.items() if times == 1)
    return {each for each, times in divisions.items() if times > 1 or once[shapes[each]] > by_the_loss[shapes[each]]}


def _scaled(scope: ProgramScope, equation: jex_core.JaxprEqn) -> Iterator[tuple[Atom, float]]:
    """Yields each operand that an equation divides by a constant, with that constant."""
    if equation.primitive.name not in ("div", "mul"):
        return
    first, second = equation.invars
    pairs = ((first, second), (second, first)) if equation.primitive.name == "mul" else ((first, second),)
    for value, factor in pairs:
        number = _number(scope, factor, equation.primitive.name)
        if number is not None and not is_literal(value):
            yield value, number


def _is_divided(scope: ProgramScope, atom: Atom, replicas: int) -> bool:
    made_in, made = scope.origin(atom)
    while made_in is not None and (equation := made_in.producer.get(made)) is not None:
        if any(number == replicas for _, number in _scaled(made_in, equation)):
            return True
        if equation.primitive.name not in KEEP_NUMBERS:
            return False
        made_in, made = made_in.origin(equation.invars[0])
    return False


def _number(scope: ProgramScope, atom: Atom, name: str) -> float | None:
    """Returns the number by which an operand divides, as a divisor or a factor; None if it is no constant."""
    made_in, value = scope.origin(atom)
    while made_in is not None:
        equation = made_in.producer.get(value)
        if equation is None or equation.primitive.name not in KEEP_NUMBERS | {"broadcast_in_dim"}:
            return None
        made_in, value = made_in.origin(equation.invars[0])
    if value is None or np.size(value) != 1 or not np.issubdtype(np.asarray(value).dtype, np.number):
        return None
    number = float(np.asarray(value).reshape(()).real)
    if name == "mul":
        number = 1 / number if number else 0.0
    return round(number, 3)


def _sums_behind(scope: ProgramScope, atom: Atom) -> Iterator[int]:
    waiting: list[tuple[ProgramScope, Atom]] = [(scope, atom)]
    seen: set[tuple[int, Atom]] = set()
    while waiting:
        used_in, used = waiting.pop()
        made_in, made = used_in.origin(used)
        if made_in is None or (id(made_in), made) in seen:
            continue
        seen.add((id(made_in), made))
        equation = made_in.producer.get(made)
        if equation is None:
            continue
        if _is_sum_over_replicas(equation):
            yield id(equation)
        elif equation.primitive.name in UNPACK_NUMBERS:
            waiting += [(made_in, operand) for operand in equation.invars]
        else:
            waiting += [(made_in, value) for value, _ in _scaled(made_in, equation)]
