"""The states of callbacks, so that those of a worker that comes later go on like the others'.

A callback that has methods `get_state()` and `set_state(state)` is asked by these. Of Keras's own, and of classes that
inherit from them, the attributes are known. Others begin anew in a new process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# By the names of classes. A version of Keras may lack some of the attributes.
_ATTRIBUTES = {
    "EarlyStopping": ("best", "best_epoch", "best_weights", "stopped_epoch", "wait"),
    "ReduceLROnPlateau": ("best", "cooldown_counter", "wait"),
    "ModelCheckpoint": ("best", "_batches_seen_since_last_saving", "_last_batch_seen"),
    "BackupAndRestore": ("_batches_seen_since_last_saving", "_last_batch_seen"),
}


def states_of_callbacks(callbacks: Sequence[Any]) -> list[Any]:
    """Returns the states of callbacks as they can be pickled; None for each that has none that is known."""
    return [_state(callback) for callback in callbacks]


def _state(callback: Any) -> Any:
    if _has_state(callback):
        return callback.get_state()
    names = _known(callback)
    return {name: getattr(callback, name) for name in names if hasattr(callback, name)} or None


def set_callback_states(callbacks: Sequence[Any], states: Sequence[Any]) -> None:
    """Gives callbacks the states that those of another worker have, in the same order."""
    for callback, state in zip(callbacks, states, strict=False):
        if state is None:
            continue
        if _has_state(callback):
            callback.set_state(state)
            continue
        for name in _known(callback):
            if name in state:
                setattr(callback, name, state[name])


def _has_state(callback: Any) -> bool:
    return callable(getattr(callback, "get_state", None)) and callable(getattr(callback, "set_state", None))


def _known(callback: Any) -> list[str]:
    return [name for base in type(callback).__mro__ for name in _ATTRIBUTES.get(base.__name__, ())]
