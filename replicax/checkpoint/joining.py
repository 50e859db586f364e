"""The state that a worker gets which joins while the others train: what an `rx.Checkpoint` has, from their memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, cast

import jax
import numpy as np

from replicax.checkpoint.checkpoint import Checkpoint
from replicax.checkpoint.contents import is_value, replace_values
from replicax.checkpoint.deferred import values_to_write
from replicax.checkpoint.encoding import (
    SavedArray,
    restored_array,
    restored_state,
    restored_value,
    saved_array,
    saved_state,
    saved_value,
    set_states,
)
from replicax.contracts.group import current_group
from replicax.contracts.variable_access import AssignableLike, VariableLike
from replicax.errors import ArgumentError, ElasticError
from replicax.runtime.transfer import host_copy
from replicax.typing import PyTree

_MOST_NAMED = 10
#: The beginning of what `Model.fit` tells a newcomer, which is no state of a checkpoint.
OF_FIT = b"fit:"


class _OfStrategy(Protocol):
    """The state that is given in any case; `strategies.joining.StrategyState` says what the methods do."""

    def follows(self, variable: object) -> bool: ...

    def track(self, variables: Callable[[], Mapping[str, VariableLike]]) -> None: ...


class CheckpointState:
    """The state that newcomers get besides the variables of the strategy; `contracts.group.State` has the methods."""

    def __init__(self, checkpoint: Checkpoint, strategies: Sequence[_OfStrategy]):
        self.checkpoint = checkpoint
        self._strategies = strategies
        for each in strategies:
            each.track(lambda: checkpoint.current_parts().variables)

    def give(self) -> tuple[Sequence[np.ndarray], bytes]:
        """Returns arrays and variables that no strategy gives, and the states of objects."""
        parts = self.checkpoint.current_parts()
        own = self._own_variables(parts.variables)
        arrays = [_host(saved_value(variable)) for variable in own.values()]
        arrays += [_host(saved_array(array)) for array in parts.arrays.values()]
        states = {name: saved_state(name, part) for name, part in parts.states.items()}
        saves, kept = int(self.checkpoint.save_counter.numpy()), self.checkpoint.keepers.get_states()
        meta = [list(own), list(parts.arrays), states, saves, kept]
        return arrays, json.dumps(meta).encode()

    def take(self, arrays: Sequence[np.ndarray], meta: bytes) -> None:
        """Gives the objects the state of another worker's."""
        if meta.startswith(OF_FIT):
            raise ElasticError(
                "This worker waits in strategy.join, or in CheckpointManager.restore_or_initialize, and the others are "
                "in Model.fit, which lets newcomers join by itself. Leave out the call before fit, and pass fit the "
                "callback rx.keras.BackupAndRestore for backups on disk."
            )
        variables, names, states, saves, kept = json.loads(meta)
        parts = self.checkpoint.current_parts()
        own = self._own_variables(parts.variables)
        _check_same_names([*variables, *names, *states], [*own, *parts.arrays, *parts.states])
        found = {name: restored_state(name, [states], 0, 1) for name in parts.states}
        objects = {name: part for name, part in parts.states.items() if not is_value(part)}
        set_states(objects, found)
        for name, array in zip(variables, arrays, strict=False):
            own[name].assign(restored_value(array, own[name]))
        values = dict(zip(names, arrays[len(variables) :], strict=True))
        new: dict[str, PyTree] = {name: restored_array(values[name], old) for name, old in parts.arrays.items()}
        new |= {name: value for name, value in found.items() if name not in objects}
        replace_values(self.checkpoint.objects, parts, new)
        self.checkpoint.save_counter.assign(saves)
        self.checkpoint.keepers.set_states(kept)

    def is_boundary(self, places: Sequence[object]) -> bool:
        """Returns whether this is where the loop asks for the next batch of the first dataset in the checkpoint."""
        if values_to_write(self.checkpoint.objects)[0].arrays:
            return False  # Values that were restored from disk wait for objects which the next step builds.
        if not places:
            return True
        states = self.checkpoint.current_parts().states.values()
        feeding = [each for each in states if getattr(each, "begins_steps", False)]
        return not feeding or any(place is feeding[0] for place in places)

    def _own_variables(self, variables: Mapping[str, AssignableLike]) -> dict[str, AssignableLike]:
        return {
            name: variable
            for name, variable in variables.items()
            if not any(each.follows(variable) for each in self._strategies)
        }


def is_newcomer() -> bool:
    """Returns whether this process has come to a running elastic job and has not joined the others yet."""
    return not current_group().is_member


def name_state(checkpoint: Checkpoint) -> None:
    """Names the state that newcomers get, if there are newcomers."""
    group = current_group()
    group.offer(CheckpointState(checkpoint, cast("list[_OfStrategy]", group.always)))


def join(checkpoint: Checkpoint | None) -> bool:
    """Names the state that newcomers get, and lets them join; returns whether this process was one of them."""
    group = current_group()
    if checkpoint is not None:
        name_state(checkpoint)
    elif group.may_change and group.state is None:
        raise ArgumentError(
            "strategy.join was called without a state, and no earlier call has named one. Pass what newcomers are to "
            "get: strategy.join(rx.Checkpoint(model=model, optimizer=optimizer, data=dataset))."
        )
    group.boundary()
    return group.join()


def state_named(checkpoint: object, objects: Mapping[str, PyTree]) -> Checkpoint | None:
    """Returns the checkpoint that a user has named by itself or by its objects; None for neither."""
    if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
        raise ArgumentError(f"strategy.join takes an rx.Checkpoint, or objects by name, got {checkpoint!r:.100}.")
    if checkpoint is not None and objects:
        raise ArgumentError(
            f"strategy.join takes an rx.Checkpoint, or objects by name ({', '.join(objects)}), not both."
        )
    return Checkpoint(**objects) if objects else checkpoint


def _host(value: SavedArray) -> np.ndarray:
    return host_copy(value) if isinstance(value, jax.Array) else np.asarray(value)


def _check_same_names(given: Sequence[str], own: Sequence[str]) -> None:
    if sorted(given) == sorted(own):
        return
    there, here = sorted(set(given) - set(own)), sorted(set(own) - set(given))
    raise ElasticError(
        "The checkpoint that strategy.join was given has other parts here than in the workers that train. Only there: "
        f"{', '.join(there[:_MOST_NAMED]) or 'nothing'}; only here: {', '.join(here[:_MOST_NAMED]) or 'nothing'}. All "
        "workers must run the same script; build models and optimizers before they join."
    )
