"""Keras's `keras.remat` and `keras.RematScope`, for layers that have state.

Keras calls `jax.checkpoint` on the `call` of a layer. That traces flags such as `training`, and an assignment in it (of
statistics, seeds) cannot leave it. Here flags stay what they are, and assigned values come out as results.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax

import replicax.compat.keras_remat as keras_door
import replicax.context as context
from replicax.contracts.variable_access import AssignableLike
from replicax.program.gradients.rematerialized import check_no_losses, remat
from replicax.program.keras.state import is_own_scope
from replicax.program.pytrees import Structure, flatten_outputs, is_array
from replicax.runtime.once import once
from replicax.typing import PyTree, PyTreeFunction


@once
def install_keras_remat() -> None:
    """Wraps the function of Keras's that `keras.remat` and `keras.RematScope` call."""
    keras_door.replace_remat(_remat)


def _remat(fn: PyTreeFunction) -> PyTreeFunction:
    of_frame = remat(fn)

    @functools.wraps(fn)
    def computed_again(*args: PyTree, **kwargs: PyTree) -> PyTree:
        if context.current().frame is not None and is_own_scope(keras_door.innermost_scope()):
            return of_frame(*args, **kwargs)
        return _in_scope_of_keras(fn, args, kwargs)

    return computed_again


def _in_scope_of_keras(fn: PyTreeFunction, args: PyTree, kwargs: PyTree) -> PyTree:
    """Calls a function that reads and assigns variables as Keras's own scope has them, as in a step of `fit`."""
    leaves, treedef = jax.tree_util.tree_flatten((args, kwargs))
    found: list[tuple[list[AssignableLike], Structure]] = []

    def pure(arrays: Sequence[jax.Array]) -> tuple[list[jax.Array], list[jax.Array]]:
        given = iter(arrays)
        args, kwargs = jax.tree_util.tree_unflatten(
            treedef, [next(given) if is_array(leaf) else leaf for leaf in leaves]
        )
        with keras_door.scope_within() as scope:
            result = fn(*args, **kwargs)
        check_no_losses(scope.losses)
        results, structure = flatten_outputs(result)
        variables, values = scope.assigned()
        found.append((variables, structure))
        return results, values

    results, values = jax.checkpoint(pure)(list(filter(is_array, leaves)))
    variables, structure = found[-1]
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
    return structure.rebuild(results)
