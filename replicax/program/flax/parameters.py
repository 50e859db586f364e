"""Modules of flax's `nnx` where a loss is differentiated with respect to variables: their parameters are meant."""

from __future__ import annotations

import jax
import jax.numpy as jnp

import replicax.compat.flax as flax_door
from replicax.contracts.variable_access import VariableLike
from replicax.program.flax.modules import is_of_flax
from replicax.program.flax.variables import FlaxVariable, arrays_held_by
from replicax.typing import Leaf, PyTree
from replicax.values.containers import flattened_by_jax


def with_parameters(variables: PyTree) -> PyTree:
    """Returns a pytree with a state of what stands for its `nnx.Param`s in the place of each module of flax."""
    if flax_door.nnx() is None:
        return variables
    leaves, treedef = flattened_by_jax(variables, is_of_flax)
    return jax.tree_util.tree_unflatten(
        treedef, [_parameters_of(leaf) if is_of_flax(leaf) else leaf for leaf in leaves]
    )


def zeros_for_flax(variable: VariableLike, gradient: jax.Array | None) -> jax.Array | None:
    """Returns a gradient; zeros where a loss does not depend on a parameter of flax, whose optimizers want no None."""
    if gradient is None and isinstance(variable, FlaxVariable):
        return jnp.zeros(variable.value.shape, variable.dtype)
    return gradient


def _parameters_of(module: Leaf) -> PyTree:
    nnx = flax_door.nnx()
    assert nnx is not None
    if flax_door.is_variable(module):
        return _standing_for(module)
    found = [(path, _standing_for(each)) for path, each in nnx.iter_graph(module) if isinstance(each, nnx.Param)]
    return nnx.from_flat_state(found)


def _standing_for(variable: Leaf) -> PyTree:
    """Returns a variable of the same kind that holds what stands for the arrays of this one."""
    held = flax_door.value_of(variable)
    return variable.replace(jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(held), arrays_held_by(variable)))
