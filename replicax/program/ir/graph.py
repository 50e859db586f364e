"""The equations of a traced program as a graph of what depends on what."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from jax.extend import core as jex_core

from replicax.program.ir.jaxprs import Atom, variables_of


class Graph:
    """Equations in their order, as a graph."""

    def __init__(self, equations: Sequence[jex_core.JaxprEqn]):
        self.equations = equations
        #: For each result the equation that makes it.
        self.producer: dict[Atom, jex_core.JaxprEqn] = {out: each for each in equations for out in each.outvars}

    def following(self, values: Iterable[jex_core.Var]) -> set[jex_core.Var]:
        """Returns `values` and everything that is computed from them."""
        found = set(values)
        for equation in self.equations:
            if not found.isdisjoint(variables_of(equation.invars)):
                found.update(equation.outvars)
        return found

    def leading_to(
        self, wanted: Iterable[jex_core.Var], and_effects: bool = False
    ) -> tuple[list[jex_core.JaxprEqn], set[jex_core.Var]]:
        """Returns the equations, in order, that some values need, and all values that take part in that."""
        needed = set(wanted)
        return self.part(lambda each: not (and_effects and each.effects), needed)[0], needed

    def between(self, values: Iterable[jex_core.Var], wanted: jex_core.Var) -> list[jex_core.JaxprEqn]:
        """Returns the equations that lead from some values to another one."""
        after = self.following(values)
        return [each for each in self.leading_to([wanted])[0] if not after.isdisjoint(each.outvars)]

    def part(
        self, may_wait: Callable[[jex_core.JaxprEqn], bool], needed: set[jex_core.Var]
    ) -> tuple[list[jex_core.JaxprEqn], list[jex_core.JaxprEqn]]:
        """Parts the equations: first those that cannot wait, with all that they and `needed` values depend on.

        Adds to `needed` what the first part reads.
        """
        first: list[jex_core.JaxprEqn] = []
        second: list[jex_core.JaxprEqn] = []
        for equation in reversed(self.equations):
            if needed.isdisjoint(equation.outvars) and may_wait(equation):
                second.append(equation)
            else:
                first.append(equation)
                needed.update(variables_of(equation.invars))
        return first[::-1], second[::-1]
