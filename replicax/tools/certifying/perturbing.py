"""Other rounding: what tells errors of rounding from mistakes.

On one device the script runs again with the last bits of weights changed before each step, and with the rows of each
batch in another order. By how much that changes a tensor is how much of a difference rounding explains.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from replicax.contracts.variable_access import array_of, dtype_of, is_trained, set_array
from replicax.tools.certifying.recorder import Recorder
from replicax.typing import PyTree


class LastBits:
    """Changes each number of what a step begins with by up to a last bit, or half of one of the products' dtype."""

    def __init__(self, seed: int, dtype: str):
        self._draws, self._dtype = np.random.default_rng(seed), dtype

    def __call__(self, recorder: Recorder, args: PyTree) -> PyTree:
        """Changes the trained variables, and returns the arguments of the step with other last bits."""
        for _, variable, _ in recorder.variables():
            if is_trained(variable) and jnp.issubdtype(jnp.dtype(dtype_of(variable)), jnp.floating):
                set_array(variable, self._changed(array_of(variable)))
        return jax.tree_util.tree_map(
            lambda leaf: self._changed(leaf) if isinstance(leaf, jax.Array) and _is_float(leaf) else leaf, args
        )

    def _changed(self, array: jax.Array) -> jax.Array:
        # Half a last bit of what a product rounds to, but so much that the array itself changes.
        most = max(float(jnp.finfo(self._dtype).eps) / 2, float(jnp.finfo(array.dtype).eps))
        factors = 1.0 + most * self._draws.uniform(-1.0, 1.0, array.shape)
        changed = (np.asarray(array).astype(np.float64) * factors).astype(array.dtype)
        return jax.device_put(changed, array.sharding)


def _is_float(leaf: jax.Array) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jnp.floating))


def reversed_rows(batch: PyTree) -> PyTree:
    """Returns a batch with its rows in the opposite order."""
    return jax.tree_util.tree_map(lambda leaf: leaf[::-1] if np.ndim(leaf) else leaf, batch)
