"""Modules of flax's `nnx` in a step: what to do where flax speaks of trace levels, or where nobody speaks.

Such a module is a pytree that changes in place. They are known by the names of the modules that their classes come
from; nothing is imported.
"""

from __future__ import annotations

import functools

import jax

from replicax.errors import ProgramError
from replicax.typing import Leaf, PyTree

_INSTEAD = (
    "Split it outside, pass its state as an argument, and put it together in the step: graphdef, state = "
    "nnx.split(model); in the step model = nnx.merge(graphdef, state); return nnx.state(model) with the loss, and "
    "keep what comes back. (Or pass the module itself, and return it.)"
)


def flax_error(error: BaseException) -> ProgramError | None:
    """Returns what to raise instead of flax's error about a module of another trace; None for any other error."""
    said = (str(error).strip().splitlines() or [""])[0]
    if "different trace level" not in said:
        return None
    told = ProgramError(
        "A step differentiates or changes a module of flax.nnx that it has captured. flax keeps arrays in the module, "
        f"and those of a step end with it: it is no variable. {_INSTEAD} flax said: {said:.200}"
    )
    return told.with_traceback(error.__traceback__)


class PassedModules:
    """The modules among a function's arguments, before it is called.

    Args:
        args: The arguments.
    """

    def __init__(self, args: PyTree):
        self._found = [(module, jax.tree_util.tree_leaves(module)) for module in _modules_in(args)]

    def check_returned(self, result: PyTree) -> None:
        """Checks that no change of a module is lost: what a compiled function changes is a copy.

        Raises:
            ProgramError: One was changed, and nothing of what changed is in `result`.
        """
        if not self._found:
            return
        returned = set(map(id, jax.tree_util.tree_leaves(result)))
        for module, before in self._found:
            kept = set(map(id, before))
            changed = [leaf for leaf in jax.tree_util.tree_leaves(module) if id(leaf) not in kept]
            if changed and not any(id(leaf) in returned for leaf in changed):
                raise ProgramError(
                    f"A step changes the {type(module).__name__} of flax.nnx that was passed to it, and does not "
                    "return it. A compiled function gets a copy, so the change would be lost. Return it: "
                    f"loss, model = strategy.run(step, args=(model, batch)). {_INSTEAD}"
                )


def _modules_in(tree: PyTree) -> list[Leaf]:
    return [leaf for leaf in jax.tree_util.tree_leaves(tree, is_leaf=_is_module) if _is_module(leaf)]


def _is_module(value: object) -> bool:
    kind: type = type(value)
    return _is_module_class(kind)


@functools.cache
def _is_module_class(kind: type) -> bool:
    return any(base.__module__.startswith("flax.nnx") for base in kind.__mro__)
