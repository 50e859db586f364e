"""The types that contracts in this package are written in, where the libraries below have no name for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

#: Any containers of leaves, as in JAX: arguments, results and batches, which are the user's and have no type of ours.
PyTree: TypeAlias = Any
#: One leaf of a pytree: an array, a number, a value with components, or whatever else the user put there.
Leaf: TypeAlias = Any
#: A function of the user's, from pytrees to a pytree.
PyTreeFunction: TypeAlias = Callable[..., PyTree]
