"""A class whose objects know their variables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from replicax.checks import checked
from replicax.contracts.variable_access import VariableLike, is_variable


@checked
class Module:
    """A base class for objects that hold variables in their attributes: layers and models without Keras.

    Variables are found in attributes, in lists, tuples and dicts of them, and in other modules there. They come in the
    order of the attributes' names; those of the module itself come before those of modules in it, and none comes twice.
    A Keras layer or model in an attribute counts with its variables.

    Args:
        name: The module's name; by default its class's, in small letters with underscores.

    Example:
        >>> import replicax as rx
        >>> class Scale(rx.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.weight = rx.Variable(2.0)
        ...         self.calls = rx.Variable(0, trainable=False)
        >>> [variable.trainable for variable in Scale().variables], len(Scale().trainable_variables)
        ([False, True], 1)
    """

    def __init__(self, name: str | None = None):
        self._name = name or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(self).__name__).lower()

    @property
    def name(self) -> str:
        """The module's name."""
        return self._name

    @property
    def variables(self) -> tuple[VariableLike, ...]:
        """The variables of this module and of those in it."""
        return tuple(_variables(self, set()))

    @property
    def trainable_variables(self) -> tuple[VariableLike, ...]:
        """The variables that are trained."""
        return tuple(each for each in self.variables if getattr(each, "trainable", True))

    @property
    def non_trainable_variables(self) -> tuple[VariableLike, ...]:
        """The variables that are not trained."""
        return tuple(each for each in self.variables if not getattr(each, "trainable", True))

    @property
    def submodules(self) -> tuple[Module, ...]:
        """The modules in this one, at any depth."""
        return tuple(_modules(self, {id(self)}))


def _attributes(module: Module) -> Iterator[object]:
    for name in sorted(vars(module)):
        yield from _leaves(vars(module)[name])


def _leaves(value: object) -> Iterator[object]:
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from _leaves(value[key])
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        for each in value:
            yield from _leaves(each)
    else:
        yield value


def _variables(module: Module, seen: set[int]) -> Iterator[VariableLike]:
    seen.add(id(module))
    inner: list[Module] = []
    for value in _attributes(module):
        if isinstance(value, Module):
            inner.append(value)
            continue
        for each in [value] if is_variable(value) else _of_keras(value):
            if id(each) not in seen:
                seen.add(id(each))
                yield each
    for module_inside in inner:
        if id(module_inside) not in seen:
            yield from _variables(module_inside, seen)


def _of_keras(value: object) -> Sequence[VariableLike]:
    """Returns the variables of a layer, model or metric of Keras's; none of anything else."""
    is_keras = any(base.__module__.partition(".")[0] == "keras" for base in type(value).__mro__)
    return list(getattr(value, "variables", ())) if is_keras else []


def _modules(module: Module, seen: set[int]) -> Iterator[Module]:
    for value in _attributes(module):
        if isinstance(value, Module) and id(value) not in seen:
            seen.add(id(value))
            yield value
            yield from _modules(value, seen)
