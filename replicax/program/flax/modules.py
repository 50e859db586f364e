"""Modules of flax's `nnx` in a step: which ones it uses, and what it may do with them.

Such a module changes in place. One that comes from outside of the step is passed as the object that it is, like a Keras
model, and its variables take part as `program/flax/variables.py` tells. A program is right for the modules that it was
made with, as they were: another mode (`model.eval()`) or another layer makes another program.

Modules and states that are made in a trace, and a `nnx.State`, are pytrees like any other.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Iterator
from typing import Protocol

import jax

import replicax.compat.flax as flax_door
from replicax.context import StateFrame
from replicax.errors import ProgramError
from replicax.program.captures import found_outside
from replicax.program.flax.variables import FlaxVariable, arrays_held_by, is_from_outside
from replicax.typing import Leaf, PyTree, PyTreeFunction
from replicax.values.containers import flattened_by_jax

_INSTEAD = (
    "Give it as an argument to what traces the function: nnx.grad(loss_fn)(model, ...), nnx.jit(f)(model, ...), "
    "nnx.scan, nnx.cond; loops and branches that carry variables are rx.lax.scan, rx.lax.cond and the like, and "
    "rx.value_and_grad(loss_fn, model)() lets a loss change what it has captured."
)


def flax_error(error: BaseException) -> ProgramError | None:
    """Returns what to raise instead of flax's error about a module of another trace; None for any other error."""
    said = (str(error).strip().splitlines() or [""])[0]
    if "different trace level" not in said:
        return None
    if "Cannot mutate '" in said:
        instead = (
            "In a step the variables of a module from outside may change, not its attributes: nothing of what Python "
            "does there is done again in later calls. Set them before the step (model.eval()), or keep the value in an "
            "nnx.Variable."
        )
    else:
        instead = f"JAX traces that function on its own, and what it assigns ends with it. {_INSTEAD}"
    told = ProgramError(
        f"A step uses a module of flax.nnx in a way that flax refuses. {instead} flax said: {said:.200}"
    )
    return told.with_traceback(error.__traceback__)


class HeldModule:
    """A module from outside in the arguments or results of a function: one leaf, which is the module itself."""

    __slots__ = ("module",)

    def __init__(self, module: Leaf):
        self.module = module

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HeldModule) and self.module is other.module

    def __hash__(self) -> int:
        return id(self.module)


def held(tree: PyTree) -> PyTree:
    """Returns a tree with each module from outside as one leaf (`HeldModule`); the same tree if there is none."""
    if flax_door.nnx() is None:
        return tree
    leaves, treedef = flattened_by_jax(tree, _stops)
    if not any(map(_is_flax_class, set(map(type, leaves)))):  # Every argument of every call comes by here.
        return tree
    found = [_is_held(leaf) for leaf in leaves]
    if not any(found):
        return tree
    pairs = zip(leaves, found, strict=True)
    return jax.tree_util.tree_unflatten(treedef, [HeldModule(leaf) if flag else leaf for leaf, flag in pairs])


def released(tree: PyTree) -> PyTree:
    """Returns a tree with the modules themselves in the places of what holds them."""
    if flax_door.nnx() is None:
        return tree
    return jax.tree_util.tree_map(released_leaf, tree)


def released_leaf(leaf: Leaf) -> Leaf:
    """Returns the module that a leaf holds; any other leaf as it is."""
    return leaf.module if isinstance(leaf, HeldModule) else leaf


def around_modules(fn: PyTreeFunction, tree: PyTree) -> PyTree:
    """Returns `fn(tree)`, where `fn` maps the leaves of a tree and leaves modules from outside alone."""
    without = held(tree)
    return fn(tree) if without is tree else released(fn(without))


def _is_held(leaf: Leaf) -> bool:
    return _is_node(leaf) and is_from_outside(leaf)


def _stops(value: object) -> bool:
    kind: type = type(value)
    return _is_flax_class(kind)


@functools.cache
def _is_flax_class(kind: type) -> bool:
    nnx = flax_door.nnx()
    return nnx is not None and issubclass(kind, (nnx.Pytree, nnx.Variable, nnx.State))


@functools.cache
def _is_state_class(kind: type) -> bool:
    nnx = flax_door.nnx()
    return nnx is not None and issubclass(kind, nnx.State)


# The modules that a program uses.


class _Arguments(Protocol):
    @property
    def static(self) -> tuple[tuple[int, Leaf], ...]:
        """The leaves that are no arrays, by position."""


@dataclasses.dataclass
class _Seen:
    """A module as it was: its attributes, by name."""

    module: object
    attributes: dict[str, Leaf]

    def changed(self) -> bool:
        now = vars(self.module)
        return len(now) != len(self.attributes) or any(map(operator.is_not, now.values(), self.attributes.values()))


class UsedModules:
    """The modules and variables of flax that a function is given or has captured, when its program is made."""

    def __init__(self, fn: PyTreeFunction, structure: _Arguments):
        self.seen: dict[int, _Seen] = {}
        self._variables: dict[int, tuple[FlaxVariable, ...]] = {}  # Held, since their names go with them.
        if flax_door.nnx() is None:
            return
        for module in (leaf.module for _, leaf in structure.static if isinstance(leaf, HeldModule)):
            self._look_at(module, type(module).__name__)
        for each in found_outside(fn, (), _stops):
            if _stops(each.value):
                self._look_at(each.value, each.where)

    def changed(self) -> bool:
        """Returns whether a module has changed otherwise than by its variables' values."""
        return any(seen.changed() for seen in self.seen.values())

    def note_in(self, frame: StateFrame) -> None:
        """Notes in a frame, where its function begins, which modules are from outside."""
        for seen in self.seen.values():
            frame.note_changed(seen.module)
            flax_door.move_outside(seen.module)

    def _look_at(self, value: Leaf, path: str) -> None:
        nnx = flax_door.nnx()
        assert nnx is not None
        if isinstance(value, nnx.Variable):
            if id(value) not in self._variables:
                self._variables[id(value)] = tuple(_named(value, path))
        elif isinstance(value, nnx.Pytree):
            if id(value) not in self.seen:
                self.seen[id(value)] = _Seen(value, dict(vars(value)))
                for name, child in flax_door.attributes_of(value).items():
                    self._look_at(child, f"{path}.{name}")
        elif isinstance(value, (list, tuple, dict, nnx.State)):
            for keys, leaf in jax.tree_util.tree_leaves_with_path(value, is_leaf=_is_node):
                if _is_node(leaf):
                    self._look_at(leaf, path + "".join(f".{_shown(key)}" for key in keys))


def is_of_flax(value: object) -> bool:
    """Returns whether something is a module, variable or state of `nnx`."""
    return _stops(value)


def _is_node(value: object) -> bool:
    kind: type = type(value)
    return _is_flax_class(kind) and not _is_state_class(kind)


def _shown(key: object) -> str:
    return next((str(getattr(key, name)) for name in ("name", "key", "idx") if hasattr(key, name)), str(key))


def _named(variable: object, path: str) -> Iterator[FlaxVariable]:
    for each in arrays_held_by(variable):
        each.name = path
        yield each


# Modules that are pytrees: their changes are lost with the trace.


class PassedModules:
    """The modules among a function's arguments that are no objects from outside, before it is called."""

    def __init__(self, args: PyTree):
        self._found = [(module, jax.tree_util.tree_leaves(module)) for module in _pytrees_of_flax_in(args)]

    def check_returned(self, result: PyTree) -> None:
        """Checks that no change is lost: a compiled function gets a copy of such a module or state."""
        if not self._found:
            return
        returned = set(map(id, jax.tree_util.tree_leaves(result)))
        for module, before in self._found:
            kept = set(map(id, before))
            changed = [leaf for leaf in jax.tree_util.tree_leaves(module) if id(leaf) not in kept]
            if changed and not any(id(leaf) in returned for leaf in changed):
                raise ProgramError(
                    f"A step changes the {type(module).__name__} of flax.nnx that was passed to it, and does not "
                    "return it. This one is a pytree, of which a compiled function gets a copy, so the change would be "
                    "lost. Return it: loss, state = strategy.run(step, args=(state, batch)). Or pass the module that "
                    "it was split from: a module from outside of the step is updated."
                )


def _pytrees_of_flax_in(tree: PyTree) -> list[Leaf]:
    if flax_door.nnx() is None:
        return []
    leaves = jax.tree_util.tree_leaves(tree, is_leaf=_stops)
    return [leaf for leaf in leaves if _stops(leaf) and not _is_held(leaf)]
