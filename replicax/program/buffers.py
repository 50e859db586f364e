"""Owners of buffers: a program may overwrite only what nobody else can see.

There is one rule, and it is applied in one place. Between programs the values of variables are in the variables. Before
a program updates some of them in place, `own` looks who else refers to their arrays. An array that only its variable
refers to is given to the program; of any other the program gets a copy.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable

from replicax.contracts.variable_access import VariableLike, array_of, set_array
from replicax.runtime.transfer import copy_of


def own(variables: Iterable[VariableLike]) -> None:
    """Gives each variable a buffer that nothing else refers to: a program is about to overwrite it."""
    for variable in variables:
        # A user has read it, or variables share it: after `a.assign(b)`, or weights and their moving averages in Keras.
        if holders(array_of(variable)) > 1:
            set_array(variable, copy_of(array_of(variable)))


def holders(value: object) -> int:
    """Returns how many references there are to `value`, those of this call aside."""
    return sys.getrefcount(value) - _references_of_a_call()


@functools.cache
def _references_of_a_call() -> int:
    """Returns by how much `sys.getrefcount` in a function exceeds the holders of its argument (Pythons differ)."""
    holder = _Holder()
    return _count(holder.value) - 1


def _count(value: object) -> int:
    return sys.getrefcount(value)


class _Holder:
    def __init__(self) -> None:
        self.value = object()
