"""Functions of the host that a program calls (`jax.pure_callback`, ...), and what happens when one of them fails.

XLA knows no way out of a program in which a function fails on one device while the others wait for that one's part of
a sum: they wait forever. So a function that fails returns zeros, the program goes on to its end, nothing of it is
stored, and then the error is raised.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import jax
import numpy as np
from jax.extend import core as jex_core

from replicax.compat.jax_equations import called_on_host, location
from replicax.compat.jax_names import CALLBACKS
from replicax.errors import ProgramError
from replicax.program.ir.jaxprs import aval_of, equations_in, is_one_of
from replicax.typing import PyTree, PyTreeFunction


class HostCalls:
    """The calls of a program's functions of the host, which are made by way of this from now on."""

    def __init__(self, name: str, equations: Sequence[jex_core.JaxprEqn]):
        self._name = name
        self._failures: list[tuple[str, BaseException]] = []
        self._is_watched = False
        for equation in equations:
            equation.params["callback"] = _Guarded(equation, self)

    @classmethod
    def of(cls, name: str, program: jex_core.ClosedJaxpr) -> HostCalls | None:
        """Returns those of a program; None if it makes none."""
        equations = [equation for equation in equations_in(program) if is_one_of(equation, CALLBACKS)]
        return cls(name, equations) if equations else None

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """The program runs in the block, and `wait` is called. Elsewhere a function that fails raises at once."""
        self._failures.clear()
        self._is_watched = True
        try:
            yield
        finally:
            self._is_watched = False

    def note(self, call: str, error: BaseException) -> bool:
        """Notes that a function has failed; returns whether that is raised later."""
        if self._is_watched:
            self._failures.append((call, error))
        return self._is_watched

    def wait(self, results: PyTree) -> None:
        """Waits for a program that makes `results`; raises an error if one of the functions has failed."""
        jax.block_until_ready(results)
        jax.effects_barrier()
        if not self._failures:
            return
        call, error = self._failures[0]
        raise ProgramError(
            f"{self._name!r} calls a function of the host by {call}, and this failed: {type(error).__name__}: {error}. "
            "Nothing of this call is stored: variables have the values that they had before."
        ) from error


def unguarded(callback: object) -> object:
    """Returns the function of the host that an equation called before `HostCalls` saw it."""
    return callback._call if isinstance(callback, _Guarded) else callback


class _Guarded:
    """A function of the host as a program calls it: flat arrays -> flat arrays."""

    def __init__(self, equation: jex_core.JaxprEqn, calls: HostCalls):
        self._call: PyTreeFunction = equation.params["callback"]
        self._results = [(aval_of(var).shape, aval_of(var).dtype) for var in equation.outvars]
        where = [called_on_host(equation), location(equation)]
        self._what = " ".join([CALLBACKS[equation.primitive.name], *(f"({each})" for each in where if each)])
        self._calls = calls

    def __call__(self, *args: jax.Array) -> Sequence[np.ndarray]:
        try:
            results = self._call(*args)
            if not self._results:
                return ()
            return self._checked(results)
        except BaseException as error:
            if not self._calls.note(self._what, error):
                raise
            return [np.zeros(shape, dtype) for shape, dtype in self._results]

    def _checked(self, results: Sequence[jax.typing.ArrayLike]) -> list[np.ndarray]:
        """Returns the results; what JAX would refuse is refused here, in time."""
        arrays = [np.asarray(result) for result in results]
        found = [(array.shape, jax.dtypes.canonicalize_dtype(array.dtype)) for array in arrays]
        if found != self._results:
            raise TypeError(f"it returned {_shown(found)}, and was to return {_shown(self._results)}")
        return arrays


def _shown(types: Sequence[tuple[tuple[int, ...], np.dtype]]) -> str:
    return ", ".join(f"{np.dtype(dtype).name}{list(shape)}" for shape, dtype in types) or "nothing"
