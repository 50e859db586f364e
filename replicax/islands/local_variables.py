"""Island-local variables: steps assign them as any others, and Python cannot read them while the islands differ.

A variable made in the scope of islands, Keras's or ours, gets a subclass of its class that looks where Python reads
its value outside of a program. Programs compute with this island's own values.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar, cast

import jax

import replicax.context as context
from replicax.compat.jax_tracing import is_tracing
from replicax.compat.keras import change_class
from replicax.contracts.variable_access import VariableLike
from replicax.variables import Variable

_Class = TypeVar("_Class", bound=type)


class Divergence(Protocol):
    """Checks whether a variable differs between islands; `Synchronizer` is one."""

    def check_equal(self, variable: VariableLike) -> None:
        """Raises `IslandDivergenceError` if a variable's value may be this island's alone."""


@contextlib.contextmanager
def own_values() -> Iterator[None]:
    """Lets this thread read this island's own values in the `with` block."""
    with context.entered(reads_own_values=True):
        yield


def make_island_local(variable: VariableLike, owner: Divergence) -> bool:
    """Gives a variable that has just been made the class that looks before its value is read; False if it has it."""
    if "_replicax_islands" in vars(variable):
        return False
    vars(variable)["_replicax_islands"] = weakref.ref(owner)
    change_class(variable, _class_of_ours if isinstance(variable, Variable) else _class_of_keras)
    return True


def _check(variable: VariableLike) -> None:
    here = context.current()
    if here.frame is not None or here.reads_own_values or is_tracing():
        return
    owner = vars(variable)["_replicax_islands"]()
    if owner is not None:
        owner.check_equal(variable)


@functools.cache
def _class_of_ours(own: _Class) -> _Class:
    read: Callable[[VariableLike], jax.Array] = own._read  # type: ignore[attr-defined]  # of rx.Variable

    def _read(self: VariableLike) -> jax.Array:
        _check(self)
        return read(self)

    return _subclass(own, _read=_read)


@functools.cache
def _class_of_keras(own: _Class) -> _Class:
    value: Callable[[VariableLike], jax.Array] = own.value.fget  # type: ignore[attr-defined]  # Keras's property

    def read(self: VariableLike) -> jax.Array:
        _check(self)
        return value(self)

    return _subclass(own, value=property(read))


def _subclass(own: _Class, **methods: object) -> _Class:
    names = {"__slots__": (), "__module__": own.__module__, "__qualname__": own.__qualname__, **methods}
    return cast(_Class, type(own.__name__, (own,), names))
