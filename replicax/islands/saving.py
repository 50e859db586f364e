"""The state of an island besides the values of variables, as plain data for a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from replicax.errors import ArgumentError, CheckpointError
from replicax.islands.island_state import Common
from replicax.islands.kinds import Kind
from replicax.islands.notes import digest_of
from replicax.islands.progress import Progress
from replicax.islands.registry import Entry
from replicax.islands.values import Values
from replicax.typing import PyTree

_NUMBERS = ("step", "steps", "exchanges", "since", "weights", "due")


def saved(common: Common, progress: Progress, entries: Sequence[Entry], values: Values | None) -> PyTree:
    """Returns the state, with the values of variables if `values` is given."""
    keys = {entry.key for entry in entries}
    outer = {str(f): jax.tree_util.tree_leaves(state) for f, state in common.outer_states.items()}
    return {
        "every": progress.schedule.every,
        "fragments": progress.schedule.fragments,
        "outer_optimizer": common.outer_kind,
        "variables": list(digest_of([entry.described for entry in entries])),
        "progress": {name: _plain(getattr(progress, name)) for name in _NUMBERS},
        "anchors": _by_position(entries, {key: x for key, x in common.anchors.items() if key in keys}),
        "bases": _by_position(entries, common.counts.bases),
        "outer": {name: [np.asarray(leaf) for leaf in leaves] for name, leaves in outer.items()},
        # Given where the islands write one checkpoint together, which has the variables of the first one.
        "values": {}
        if values is None
        else _by_position(entries, {entry.key: values.local(entry.variable) for entry in entries}),
    }


def check_saved(state: Mapping[str, PyTree], progress: Progress, outer_kind: str) -> None:
    """Checks that a state fits the rounds and the outer optimizer of a strategy."""
    own = progress.schedule
    if (state["every"], state["fragments"]) != (own.every, own.fragments):
        raise ArgumentError(
            f"The checkpoint is of rounds of {state['every']} steps with {state['fragments']} fragments, and the "
            f"strategy has {own.every} and {own.fragments}. Make it with every={state['every']}, "
            f"fragments={state['fragments']}."
        )
    if state["outer_optimizer"] != outer_kind:
        raise CheckpointError(
            f"The checkpoint is of islands whose outer optimizer is {state['outer_optimizer']}, and that of this "
            f"strategy is {outer_kind}. Make the same one. To begin with another one, restore only the model and the "
            "optimizer, without the strategy, from a checkpoint that was written at the end of a round."
        )


def restore(
    state: Mapping[str, PyTree], common: Common, progress: Progress, entries: Sequence[Entry], values: Values
) -> None:
    """Restores a state that `saved` has returned."""
    if tuple(state["variables"]) != digest_of([entry.described for entry in entries]):
        raise CheckpointError(
            f"The checkpoint of an island is of {state['variables'][1]} variables, which are not the "
            f"{len(entries)} here. Make the same model, optimizer and metrics, in the same order."
        )
    for name in _NUMBERS:
        value = state["progress"][name]
        setattr(progress, name, tuple(value) if name == "due" else value)
    if state["values"]:
        values.store(entries, [_on(values, state["values"][str(i)]) for i in range(len(entries))])
    common.anchors = {entries[int(i)].key: _on(values, value) for i, value in state["anchors"].items()}
    trained = [entry for entry in entries if entry.kind is Kind.TRAINED]
    for name, leaves in state["outer"].items():
        fragment = int(name)
        own = [entry for entry in trained if entry.fragment == fragment]
        like = common.outer_state(fragment, own, [values.local(entry.variable) for entry in own])
        structure = jax.tree_util.tree_structure(like)
        found = jax.tree_util.tree_unflatten(structure, [_on(values, leaf) for leaf in leaves])
        common.keep_outer({fragment: found}, entries)
    for i, base in state["bases"].items():
        common.counts.go_on(entries[int(i)], _on(values, base))


def _on(values: Values, array: np.ndarray) -> jax.Array:
    return jax.device_put(jnp.asarray(array), values.device)


def _plain(value: object) -> object:
    return list(value) if isinstance(value, (list, tuple)) else value


def _by_position(entries: Sequence[Entry], arrays: Mapping[int, jax.Array]) -> dict[str, np.ndarray]:
    return {str(i): np.asarray(arrays[entry.key]) for i, entry in enumerate(entries) if entry.key in arrays}
