"""Storing what a program returns: all of it or nothing.

A program overwrites the buffers of the variables that it assigns, so between its end and the moment at which each
variable has its new value, a variable holds nothing. Nothing may come in between, not even Ctrl-C. Python looks for
signals between its own instructions only; so what must not be torn apart is done by one call of a function that is
written in C.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Sequence
from typing import TypeVar

import jax

from replicax.compat.jax_errors import is_about_devices
from replicax.contracts.variable_access import VariableLike, array_of, lives_elsewhere, name_of
from replicax.errors import LayoutError, ProgramError
from replicax.runtime.transfer import is_deleted
from replicax.typing import PyTree, PyTreeFunction

_SHOWN = 3

_Kept = TypeVar("_Kept")


def store_values(variables: Sequence[VariableLike], values: Sequence[jax.Array]) -> None:
    """Gives each variable its value, all of them at once: no exception can come in between."""
    assert len(variables) == len(values)
    collections.deque(map(setattr, variables, itertools.repeat("_value"), values), maxlen=0)


def run_and_keep(program: PyTreeFunction, inputs: Sequence[PyTree], keep: Callable[[PyTree], _Kept]) -> _Kept:
    """Returns `keep(program(*inputs))`, where the program overwrites its inputs: what it returns is not lost."""
    made: list[PyTree] = []
    try:
        made.extend(itertools.starmap(program, (inputs,)))
        return keep(made[0])
    except BaseException:
        if made:
            keep(made[0])  # again, if an exception (an interrupt) has come in its way
        raise


def explain_loss(error: BaseException, variables: Sequence[VariableLike], values: Sequence[jax.Array]) -> None:
    """Raises an error that says what to do if a program that has failed took the values of variables with it."""
    lost = [
        variable
        for variable, value in zip(variables, values, strict=True)
        if not lives_elsewhere(variable) and array_of(variable) is value and is_deleted(value)
    ]
    if not lost:
        return
    said = (
        f"The values of {len(lost)} variables are lost ({shown_names(lost)}): a program that updates them in place has "
        "failed while it ran, when their buffers had been given to it. Restore them from a checkpoint "
        "(rx.CheckpointManager, model.load_weights), or create the variables anew."
    )
    if isinstance(error, Exception):
        raise ProgramError(said) from error
    error.add_note(said)  # An interrupt is left as it is.


def explain_devices(error: BaseException, name: str) -> None:
    """Raises an error that says what to do if a program was to use values on different devices."""
    if is_about_devices(error):
        raise LayoutError(
            f"{name!r} is one compiled program, and one program runs on one set of devices, in one order. Move values "
            "to other devices before it is called, or its results afterwards: strategy.replicate(value), or "
            "rx.dtensor.copy_to_mesh(value, layout). "
            f"JAX said: {str(error).splitlines()[0]}"
        ) from None


def shown_names(variables: Sequence[VariableLike]) -> str:
    """Returns the names of variables for messages, at most the first few."""
    names = ", ".join(repr(name_of(variable)) for variable in variables[:_SHOWN])
    return names + (", ..." if len(variables) > _SHOWN else "")
