"""Modules, optimizers, metrics and states of flax's `nnx` in a checkpoint: their variables, by their paths."""

from __future__ import annotations

from collections.abc import Iterator

import jax

from replicax.program.flax.modules import is_of_flax as is_of_flax
from replicax.program.flax.variables import FlaxVariable, arrays_held_by, is_flax_variable
from replicax.typing import Leaf


def flax_arrays(value: Leaf, path: str, seen: set[int]) -> Iterator[tuple[str, FlaxVariable]]:
    """Yields what stands for the arrays in the variables of a module, state or variable, and their names."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if is_flax_variable(value):
        arrays = list(arrays_held_by(value))
        yield from ((path if len(arrays) == 1 else f"{path}/{i}", each) for i, each in enumerate(arrays))
        return
    children, _ = jax.tree_util.tree_flatten_with_path(
        value, is_leaf=lambda node: node is not value and is_of_flax(node)
    )
    for keys, child in children:
        if is_of_flax(child):
            yield from flax_arrays(child, f"{path}/{jax.tree_util.keystr(keys, simple=True, separator='/')}", seen)
