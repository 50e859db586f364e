"""The names of a model's variables, and those of the tensors that users give them."""

from __future__ import annotations

import collections
import difflib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from replicax.contracts.variable_access import AssignableLike, is_variable, name_of
from replicax.errors import ArgumentError

if TYPE_CHECKING:
    import keras

Transform: TypeAlias = Callable[[np.ndarray], np.ndarray]
#: The tensor of a variable: its name, or that and a function that makes the variable's value of it.
Named: TypeAlias = "str | tuple[str, Transform]"
Names: TypeAlias = "Mapping[str, Named] | Callable[[str], Named | None]"
#: A Keras model or layer, or variables by name.
Model: TypeAlias = "keras.Layer | Mapping[str, AssignableLike]"

_SHOWN = 5


def named_variables(model: Model) -> dict[str, AssignableLike]:
    """Returns the variables of a model by name: their path, without the model's name at the beginning."""
    if isinstance(model, Mapping):
        wrong = {name: value for name, value in model.items() if not isinstance(name, str) or not is_variable(value)}
        if wrong:
            raise ArgumentError(f"`model` is a Keras model or maps names to variables, got {wrong!r:.200}.")
        return dict(model)
    variables = getattr(model, "weights", None)
    if not isinstance(variables, list):
        raise ArgumentError(f"`model` is a Keras model or maps names to variables, got {model!r:.100}.")
    if not getattr(model, "built", True) or not variables:
        raise ArgumentError(f"{model!r:.100} has no variables yet: build it first, or call it on some data.")
    prefix = f"{model.name}/"
    names = [name_of(variable).removeprefix(prefix) for variable in variables]
    twice = [name for name, count in collections.Counter(names).items() if count > 1]
    if twice:
        raise ArgumentError(
            f"Several variables have the names {twice[:_SHOWN]}. Give the layers names of their own, or pass a mapping "
            "from names to variables in place of the model."
        )
    return dict(zip(names, variables, strict=True))


def named_tensor(names: Names | None, name: str) -> tuple[str, Transform | None] | None:
    """Returns the tensor of a variable, and the function that makes its value of it; None if it has none."""
    named: object = name
    if names is not None:
        named = names.get(name) if isinstance(names, Mapping) else names(name)
    if named is None:
        return None
    if isinstance(named, str):
        return named, None
    if isinstance(named, tuple) and len(named) == 2 and isinstance(named[0], str) and callable(named[1]):
        return named[0], named[1]
    raise ArgumentError(f"`names` gives a tensor's name, or (name, function), got {named!r:.100} for {name!r}.")


def check_names(names: object, variables: Mapping[str, AssignableLike]) -> None:
    """Checks that a mapping of names is one, and has only names of variables that exist."""
    if names is None or callable(names):
        return
    if not isinstance(names, Mapping):
        raise ArgumentError(f"`names` maps variables to tensors, or is a function that does, got {names!r:.100}.")
    unknown = [name for name in names if name not in variables]
    if unknown:
        near = {name: difflib.get_close_matches(str(name), variables, n=3, cutoff=0) for name in unknown[:_SHOWN]}
        raise ArgumentError(f"`names` speaks of variables that the model does not have; the nearest: {near}.")
