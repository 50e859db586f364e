"""Attributes of flax's modules that a step sets: another mode, a variable or layer that it makes.

A function is traced once and runs often. So what it does to the attributes of modules from outside is taken back when
its trace ends, and is done again each time its program has run, when new variables have their values.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterable, Iterator

import jax

import replicax.compat.flax as flax_door
from replicax.errors import ProgramError
from replicax.typing import Leaf
from replicax.values.containers import is_same_setting

_PLAIN = (str, int, float, bool, type(None))


@dataclasses.dataclass(frozen=True)
class ModuleChange:
    """A change of a module's attributes."""

    module: object
    new: dict[str, Leaf]  # the attributes that are set
    removed: tuple[str, ...]

    def apply(self) -> None:
        flax_door.set_attributes(self.module, self.new, self.removed)


class ModuleChanges:
    """The modules whose attributes change during a trace."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[object, dict[str, Leaf]]] = {}

    def note(self, module: object) -> None:
        """Notes a module from outside before it changes."""
        # `nnx.grad` and `nnx.jit` empty a module and fill it again. Its mark of the trace in which it was made is then
        # new, but the module is still one from outside.
        if id(module) not in self._before:
            self._before[id(module)] = (module, dict(vars(module)))

    def knows(self, module: object) -> bool:
        return id(module) in self._before

    def found(self) -> list[ModuleChange]:
        """Returns the changes up to now."""
        changes = [_difference(module, before) for module, before in self._before.values()]
        return [change for change in changes if change.new or change.removed]

    def undo(self) -> None:
        """Takes them back."""
        for module, before in self._before.values():
            flax_door.set_attributes(module, before, list(vars(module)))  # In the order that they had.
        self._before.clear()


def apply_changes(changes: Iterable[ModuleChange], note: Callable[[object], None] | None = None) -> None:
    """Makes changes."""
    for change in changes:
        if note is not None:
            note(change.module)
        change.apply()


def made_in(changes: Iterable[ModuleChange], is_known: Callable[[object], bool]) -> Iterator[tuple[str, object]]:
    """Yields the variables and modules that a trace has made and put into modules from outside, with their paths."""
    waiting = [
        (f"{type(change.module).__name__}.{name}", value) for change in changes for name, value in change.new.items()
    ]
    seen: set[int] = set()
    while waiting:
        path, value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        for keys, leaf in jax.tree_util.tree_leaves_with_path(value, is_leaf=flax_door.is_variable_or_module):
            where = path + jax.tree_util.keystr(keys)
            if isinstance(leaf, jax.core.Tracer):
                raise ProgramError(
                    f"A step sets {where} to an array that it has computed. Attributes of modules are Python's; keep "
                    "arrays that steps compute in variables: nnx.Variable(...), assigned with variable[...] = value."
                )
            if flax_door.is_variable_or_module(leaf) and not is_known(leaf):
                yield where, leaf
                if not flax_door.is_variable(leaf):
                    waiting.extend((f"{where}.{k}", v) for k, v in flax_door.attributes_of(leaf).items())


def _difference(module: object, before: dict[str, Leaf]) -> ModuleChange:
    now = flax_door.attributes_of(module, and_kinds=True)
    new = {name: value for name, value in now.items() if name not in before or not is_same(before[name], value)}
    return ModuleChange(module, new, tuple(name for name in before if name not in vars(module)))


def is_same(one: Leaf, other: Leaf) -> bool:
    """Returns whether two attributes are alike: the same object, equal settings, or trees of the same objects."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, _PLAIN) or flax_door.is_kinds(one):
        return is_same_setting(one, other)
    if flax_door.is_variable_or_module(one):
        return False
    mine, structure = jax.tree_util.tree_flatten(one, is_leaf=flax_door.is_variable_or_module)
    others, others_structure = jax.tree_util.tree_flatten(other, is_leaf=flax_door.is_variable_or_module)
    # Of a leaf that is no container this compares the leaf itself, which is another one.
    return operator.eq(structure, others_structure) and all(map(operator.is_, mine, others))
