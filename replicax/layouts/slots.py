"""An optimizer's state has the layout of the parameters that it belongs to."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import replicax.compat.keras as keras_door
from replicax.contracts.variable_access import VariableLike, is_variable, name_of, shape_of
from replicax.layouts.kernels import class_names
from replicax.program.keras.makers import makers_of

if TYPE_CHECKING:
    import keras


class Slot(NamedTuple):
    """A part of an optimizer's state."""

    parameter: VariableLike
    dimensions: tuple[int, ...]  # of the parameter: all, or for Adafactor's rows and columns all but one


def maker_is_optimizer(variable: VariableLike) -> bool:
    """Returns whether an optimizer made a variable."""
    makers = makers_of(variable)
    return bool(makers) and "BaseOptimizer" in class_names(makers[0])


def slot_of(variable: VariableLike) -> Slot | None:
    """Returns which parameter a variable of an optimizer belongs to; None for one that counts steps, say."""
    makers, shape = makers_of(variable), shape_of(variable)
    if not makers or not shape:
        return None
    optimizer = makers[0]
    parameters = list(keras_door.trainable_variables_of(optimizer) or ())
    found = by_name(variable, parameters)  # Keras names most of an optimizer's state after a parameter's path.
    if found is not None:
        return found
    # While an optimizer is built, state that is not named so (the rows and columns of Adafactor: N. Shazeer and
    # M. Stern, 2018, arXiv:1804.04235) belongs to the parameter for which the lists of state are not complete.
    lists = _unfinished(optimizer, len(parameters))
    if not lists:
        return None
    parameter = parameters[min(map(len, lists))]
    if parameter.name != variable.name:
        return None
    kept = _kept_dimensions(shape_of(parameter), shape)
    made_before = sum(len(each) > min(map(len, lists)) for each in lists)
    return Slot(parameter, kept[min(made_before, len(kept) - 1)]) if kept else None


def by_name(variable: VariableLike, parameters: Sequence[VariableLike]) -> Slot | None:
    """Returns the parameter after whose path a variable is named; the one with the longest path of several."""
    name, shape = name_of(variable).rsplit("/", 1)[-1], shape_of(variable)
    named = [each for each in parameters if name.startswith(name_of(each).replace("/", "_") + "_")]
    for parameter in sorted(named, key=lambda each: -len(name_of(each))):
        kept = _kept_dimensions(shape_of(parameter), shape)
        if kept:
            return Slot(parameter, kept[0])
    return None


def _unfinished(optimizer: object, count: int) -> list[list[keras.Variable]]:
    """Returns the lists of an optimizer in which variables, one for each of `count` parameters, are being put."""
    found = ((name, value) for name, value in vars(optimizer).items() if name != "_variables")
    lists = [value for _, value in found if isinstance(value, list) and len(value) < count]
    return [each for each in lists if all(entry is None or is_variable(entry) for entry in each)]


def _kept_dimensions(shape: tuple[int, ...], part: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Returns the dimensions of `shape` that make `part`, with those of all of them or of all but one, last first.

    Example:
        >>> _kept_dimensions((4, 4), (4,)), _kept_dimensions((2, 3), (3,))
        ([(0,), (1,)], [(1,)])
    """
    if part == shape:
        return [tuple(range(len(shape)))]
    if len(part) != len(shape) - 1:
        return []
    found = itertools.combinations(range(len(shape)), len(part))
    return [kept for kept in found if tuple(shape[i] for i in kept) == part]
