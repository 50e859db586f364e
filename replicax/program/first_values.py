"""First values of variables as programs: what an initializer would compute, traced and not computed yet."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.extend import core as jex_core

from replicax.compat.jax_names import CALLS, MADE_IN_PARTS, RANDOM_BITS
from replicax.compat.jax_tracing import outside_traces, tracing_all
from replicax.compat.keras_backend import keras_is_loaded
from replicax.contracts.variable_access import AssignableLike, has_array
from replicax.program.ir.graph import Graph
from replicax.program.ir.interpreter import bind
from replicax.program.ir.jaxprs import Atom, aval_of, is_literal, is_one_of, number_of, variables_of, with_inner

_KEYS_OF_PARTS = "key<fry>"
#: Takes a first value's constants and numbers; returns the value, and then what the variables become that it changes.
Computing: TypeAlias = Callable[
    [Sequence[jax.typing.ArrayLike], Sequence[jax.typing.ArrayLike]], Sequence[jax.typing.ArrayLike]
]


class FirstValue:
    """A first value that is still to be computed."""

    def __init__(
        self, program: jex_core.Jaxpr, constants: Sequence[jax.typing.ArrayLike], assigned: Sequence[AssignableLike]
    ):
        # The program computes it, and then the new values of `assigned`: states of Keras's seed generators. Its
        # constants are seeds, and arrays of the user's.
        self._program, self.constants, self._assigned = program, list(constants), list(assigned)
        result = aval_of(program.outvars[0])
        self.shape, self.dtype = result.shape, result.dtype
        self._equations, _ = Graph(program.eqns).leading_to(variables_of(program.outvars))

    @functools.cached_property
    def key(self) -> Hashable:
        """Equal for two programs that compute the same of other constants and numbers."""
        numbers: dict[jex_core.Var, int] = {}

        def kind(atom: Atom) -> Hashable:
            own = numbers.setdefault(atom, len(numbers)) if isinstance(atom, jex_core.Var) else -1
            return own, aval_of(atom).shape, aval_of(atom).dtype

        def kinds(atoms: Sequence[Atom]) -> Hashable:
            return tuple(map(kind, atoms))

        # JAX traces a function under `jax.jit` once, so two among the parameters that are not the same object are taken
        # for different.
        equations = [
            (each.primitive, kinds(each.invars), tuple(sorted(each.params.items())), kinds(each.outvars))
            for each in self._equations
        ]
        return kinds(self._program.constvars), tuple(equations), kinds(self._program.outvars)

    @property
    def is_by_element(self) -> bool:
        """Whether each number of the value is computed for itself, so that a part of it has the same numbers."""
        # A sum over a dimension, or a decomposition, would be computed in another order.
        return all(_is_by_element(each) for equation in self._equations for each in with_inner(equation))

    @property
    def is_constant(self) -> bool:
        return self._program.outvars[0] in self._program.constvars

    @property
    def shapes(self) -> set[tuple[int, ...]]:
        """The shapes of all that is computed on the way."""
        return {aval_of(out).shape for equation in self._equations for out in equation.outvars}

    @property
    def num_results(self) -> int:
        """The number of results: the value, and what the variables become that computing it changes."""
        return len(self._program.outvars)

    @property
    def numbers(self) -> list[np.ndarray]:
        """The numbers that stand in the program, such as a deviation."""
        return [number_of(atom) for equation in self._equations for atom in equation.invars if is_literal(atom)]

    @property
    def computing(self) -> Computing:
        """The program, which is the same for all first values of an equal `key`; it holds no constants of this one."""
        program, equations = self._program, self._equations

        def computed(
            constants: Sequence[jax.typing.ArrayLike], numbers: Sequence[jax.typing.ArrayLike]
        ) -> list[jax.typing.ArrayLike]:
            known: dict[Atom, Any] = dict(zip(program.constvars, constants, strict=True))
            left: Iterator[Any] = iter(numbers)
            for equation in equations:
                inputs = [next(left) if is_literal(atom) else known[atom] for atom in equation.invars]
                results = bind(equation, inputs)
                if is_one_of(equation, CALLS):
                    # XLA joins what follows with the end of it otherwise, and rounds once where an initializer rounds
                    # twice: `normal(key) * deviation`. (A sum that follows, `+ mean`, it joins all the same.)
                    results = jax.lax.optimization_barrier(results)
                known.update(zip(equation.outvars, results, strict=True))
            return [number_of(atom) if is_literal(atom) else known[atom] for atom in program.outvars]

        return computed

    def computed(self) -> Sequence[jax.typing.ArrayLike]:
        """Computes the value on one device, operation by operation, as where the initializer is called."""
        with outside_traces(), tracing_all():
            return self.computing(self.constants, self.numbers)

    def note(self, values: Sequence[jax.typing.ArrayLike]) -> None:
        """Assigns the variables that computing the value changes."""
        for variable, value in zip(self._assigned, values, strict=True):
            variable.assign(value)


def traced_value(function: Callable[[], jax.Array]) -> FirstValue | None:
    """Returns what a function would compute; None if it cannot be traced, since its Python needs the numbers."""
    assigned: list[AssignableLike] = []

    def program() -> list[jax.Array]:
        if not keras_is_loaded():
            return [function()]
        with _noting_scope_class()() as scope:
            value = function()
        assigned.extend(scope.assigned)
        return [value, *map(scope.get_current_value, assigned)]

    try:
        with outside_traces(), tracing_all():
            closed = jax.make_jaxpr(program)()
    except Exception:
        # Whoever calls it outright gets the value, or this error again.
        return None
    if any(isinstance(const, jax.core.Tracer) for const in closed.consts) or not all(map(has_array, assigned)):
        return None  # It reads what another program computes, or makes variables itself.
    return FirstValue(closed.jaxpr, closed.consts, assigned)


@functools.cache
def _noting_scope_class() -> type:
    import keras

    class NotingScope(keras.StatelessScope):  # type: ignore[misc]  # Keras has no types
        """Notes which variables are assigned in it."""

        def __init__(self) -> None:
            super().__init__(initialize_variables=False)
            self.assigned: list[keras.Variable] = []

        def add_update(self, update: tuple[keras.Variable, jax.Array]) -> None:
            variable, _ = update
            if not any(variable is each for each in self.assigned):
                self.assigned.append(variable)
            super().add_update(update)

    return NotingScope


def _is_by_element(equation: jex_core.JaxprEqn) -> bool:
    if is_one_of(equation, [RANDOM_BITS]):
        # Other generators draw the bits of a part in the order of the part.
        partitionable: bool = jax.config.jax_threefry_partitionable  # type: ignore[attr-defined]
        return partitionable and str(aval_of(equation.invars[0]).dtype) == _KEYS_OF_PARTS
    return is_one_of(equation, MADE_IN_PARTS) or is_one_of(equation, CALLS)
