"""Whether two traces of a function have made the same program."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Sequence

import jax
import numpy as np
from jax.extend import core as jex_core

from replicax.compat.jax_names import CALLBACKS
from replicax.program.captures import SETTINGS, content_of
from replicax.program.host_calls import unguarded
from replicax.program.ir.jaxprs import Atom, Program, aval_of, is_literal, is_one_of, opened_program
from replicax.program.pytrees import Structure
from replicax.program.tracing import TracedFunction


def are_same(one: TracedFunction, other: TracedFunction) -> bool:
    """Returns whether two functions compute the same of the same variables; False where that is not certain."""
    if not (are_identical(one.read, other.read) and are_identical(one.written, other.written)):
        return False
    stand_ins = zip(map(id, one.placeholders), map(id, other.placeholders), strict=True)
    return _Comparison(dict(stand_ins)).programs(one.program, other.program)


def are_same_programs(one: jex_core.ClosedJaxpr, other: jex_core.ClosedJaxpr) -> bool:
    """Returns whether two programs compute the same of their arguments; False where that is not certain."""
    return _Comparison({}).programs(one, other)


def are_same_structures(one: Structure, other: Structure) -> bool:
    """Returns whether two results are rebuilt alike, with equal numbers of Python in them."""
    if one.treedef != other.treedef or [i for i, _ in one.static] != [i for i, _ in other.static]:
        return False
    return all(_are_equal_settings(a, b) for (_, a), (_, b) in zip(one.static, other.static, strict=True))


def are_identical(some: Sequence[object], others: Sequence[object]) -> bool:
    """Returns whether two sequences are of the same objects."""
    return list(map(id, some)) == list(map(id, others))


def _are_equal_settings(one: object, other: object) -> bool:
    return one is other or (isinstance(one, SETTINGS) and type(one) is type(other) and bool(one == other))


class _Comparison:
    def __init__(self, stand_ins: dict[int, int]):
        self._stand_ins = stand_ins  # by id: the one's arrays that stand for variables, and the other's
        self._compared: set[tuple[int, int]] = set()  # Programs may call one of theirs often.

    def programs(self, one: Program, other: Program) -> bool:
        """Returns whether two programs do the same."""
        if (id(one), id(other)) in self._compared:
            return True
        (jaxpr, consts), (other_jaxpr, other_consts) = opened_program(one), opened_program(other)
        if len(consts) != len(other_consts) or len(jaxpr.eqns) != len(other_jaxpr.eqns):
            return False
        numbers: list[dict[jex_core.Var, int]] = [{}, {}]

        def are_defined(variables: Sequence[jex_core.Var], others: Sequence[jex_core.Var]) -> bool:
            for each, known in zip((variables, others), numbers, strict=True):
                first = len(known)
                known.update((variable, first + i) for i, variable in enumerate(each))
            return [aval_of(each) for each in variables] == [aval_of(each) for each in others]

        def are_read(atoms: Sequence[Atom], others: Sequence[Atom]) -> bool:
            return len(atoms) == len(others) and all(map(is_read, atoms, others))

        def is_read(atom: Atom, other: Atom) -> bool:
            if is_literal(atom) and is_literal(other):
                return aval_of(atom) == aval_of(other) and self._constant(atom.val, other.val)
            if isinstance(atom, jex_core.Var) and isinstance(other, jex_core.Var):
                return numbers[0][atom] == numbers[1][other]
            return False

        same = (
            are_defined([*jaxpr.constvars, *jaxpr.invars], [*other_jaxpr.constvars, *other_jaxpr.invars])
            and all(map(self._constant, consts, other_consts))
            and all(
                equation.primitive is twin.primitive
                and are_read(equation.invars, twin.invars)
                and self._value(equation.params, twin.params, is_one_of(equation, CALLBACKS))
                and are_defined(equation.outvars, twin.outvars)
                for equation, twin in zip(jaxpr.eqns, other_jaxpr.eqns, strict=True)
            )
            and are_read(jaxpr.outvars, other_jaxpr.outvars)
        )
        if same:
            self._compared.add((id(one), id(other)))
        return same

    def _constant(self, one: object, other: object) -> bool:
        if one is other:
            return True
        if id(one) in self._stand_ins:
            return self._stand_ins[id(one)] == id(other)
        if any(isinstance(each, jax.Array) and not each.is_fully_addressable for each in (one, other)):
            return False
        kinds = [getattr(each, "dtype", type(each)) for each in (one, other)]
        if kinds[0] != kinds[1] or jax.dtypes.issubdtype(kinds[0], jax.dtypes.extended):
            return False
        one, other = np.asarray(one), np.asarray(other)
        return one.shape == other.shape and one.tobytes() == other.tobytes()

    def _value(self, one: object, other: object, runs_on_host: bool = False) -> bool:
        """Returns whether two parameters of equations are the same."""
        one, other = unguarded(one), unguarded(other)
        if one is other:
            return True
        if isinstance(one, Program) and isinstance(other, Program):
            return self.programs(one, other)
        if type(one) is not type(other):
            return False
        if isinstance(one, dict) and isinstance(other, dict):
            return one.keys() == other.keys() and all(self._value(one[key], other[key], runs_on_host) for key in one)
        if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
            return len(one) == len(other) and all(
                self._value(*both, runs_on_host) for both in zip(one, other, strict=True)
            )
        if isinstance(one, (jax.Array, np.ndarray)):
            return self._constant(one, other)
        # Functions that do not run on the host are rules for derivatives, made in each trace; what they do is in the
        # program already.
        if callable(one) or hasattr(one, "call_wrapped"):
            return self._functions(one, other) if runs_on_host else True
        try:
            return bool(one == other)
        except Exception:  # Classes compare as they like; what cannot be compared is another one.
            return False

    def _functions(self, one: object, other: object) -> bool:
        """Returns whether two functions of the host do the same; one that is met inside of itself does."""
        both = id(one), id(other)
        if both in self._compared:
            return True
        self._compared.add(both)
        same = self._value(_parts_of(one), _parts_of(other), True)
        if not same:
            self._compared.discard(both)
        return same


def _parts_of(function: object) -> object:
    """Returns what a function of the host is made of."""
    if isinstance(function, types.FunctionType):
        cells = [content_of(cell) for cell in function.__closure__ or ()]
        return [function.__code__, cells, function.__defaults__, function.__kwdefaults__]
    if isinstance(function, functools.partial):
        return [function.func, function.args, function.keywords]
    if isinstance(function, types.MethodType):
        return [function.__func__, id(function.__self__)]
    if dataclasses.is_dataclass(function):
        return [getattr(function, field.name) for field in dataclasses.fields(function)]
    return id(function)
