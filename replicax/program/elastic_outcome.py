"""The outcome of a program, as one worker tells it another one that was interrupted in the middle of it."""

from __future__ import annotations

import json
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from replicax.compat.jax import is_random_key
from replicax.contracts.placement import Placement
from replicax.contracts.variable_access import VariableLike, array_of
from replicax.program.resized_variables import components_in, refitted
from replicax.runtime.transfer import host_copy, put, with_kind_of


def told_outcome(new_values: Sequence[jax.Array], leaves: Sequence[jax.Array]) -> list[np.ndarray]:
    """Returns what a program has made as arrays on the host, with what they do not say: which ones are random keys."""
    impls = [str(jax.random.key_impl(leaf)) if is_random_key(leaf) else "" for leaf in leaves]
    meta = np.frombuffer(json.dumps(impls).encode(), np.uint8)
    return [meta, *map(host_copy, new_values), *map(host_copy, leaves)]


def heard_outcome(
    told: Sequence[np.ndarray], written: Sequence[VariableLike], placement: Placement
) -> tuple[list[jax.Array], list[jax.Array]]:
    """Returns the new values of variables, where they live now, and the results: what `told_outcome` was given."""
    impls = json.loads(told[0].tobytes())
    values = told[1 : 1 + len(written)]
    leaves = [
        jax.random.wrap_key_data(jnp.asarray(leaf), impl=impl) if impl else jnp.asarray(leaf)
        for leaf, impl in zip(told[1 + len(written) :], impls, strict=True)
    ]
    return [_placed(variable, value, placement) for variable, value in zip(written, values, strict=True)], leaves


def _placed(variable: VariableLike, value: np.ndarray, placement: Placement) -> jax.Array:
    sharding = placement.variable_sharding(variable)
    assert sharding is not None  # Only placements over a mesh have worlds.
    value = refitted(variable, value, components_in(variable, value), placement.replicas)
    return put(with_kind_of(array_of(variable), value), sharding)
