"""The optimizer's configuration in a model that Keras saved as HDF5: its learning rate and other hyperparameters."""

from __future__ import annotations

import numpy as np

from replicax.tensorflow.checkpoints.matches import Match
from replicax.tensorflow.checkpoints.optimizer_state import OptimizerState
from replicax.tensorflow.checkpoints.slot_names import CONFIGURED, SLOTS

_CLOSE = 1e-5  # TensorFlow keeps some of the numbers in float32.
_ABSENT_IS_NONE = ("weight_decay", "clipnorm", "clipvalue", "global_clipnorm")


def match_config(state: OptimizerState) -> None:
    """Restores the learning rate, and compares the other hyperparameters with those here."""
    stored = state.matches.checkpoint.optimizer_config
    config = stored.get("config")
    if not isinstance(config, dict):
        return
    inner = config.get("inner_optimizer")
    if isinstance(inner, dict) and isinstance(inner.get("config"), dict):
        stored, config = inner, inner["config"]
    name = str(stored.get("class_name", "")).rpartition(">")[2]
    if name in SLOTS and name != state.kind and {name, state.kind} != {"Adam", "AdamW"}:
        state.matches.problem(
            f"The optimizer in the checkpoint is {name}, and the one here is {state.kind}. Make the same here, or "
            "restore the model without it."
        )
        return
    _learning_rate(state, config.get("learning_rate"))
    decay = config.get("decay")
    if isinstance(decay, (int, float)) and decay:
        state.matches.doubt(f"The optimizer in the checkpoint has decay={decay:.6g}, which the one here does not have.")
    for each in CONFIGURED:
        if (each in config or each in _ABSENT_IS_NONE) and hasattr(state.optimizer, each):
            _compare(state, each, config.get(each), getattr(state.optimizer, each))


def _learning_rate(state: OptimizerState, rate: object) -> None:
    target = state.rate
    if isinstance(rate, dict):
        if target is not None:
            state.matches.doubt(
                f"The learning rate in the checkpoint follows {rate.get('class_name')}, and the one here is a number: "
                "give the optimizer the schedule."
            )
    elif isinstance(rate, (int, float)) and target is not None and state.matches.is_free(target):
        value = np.asarray(rate, target.dtype)
        state.matches.add(Match(target, "training_config/learning_rate", value=value))


def _compare(state: OptimizerState, name: str, there: object, here: object) -> None:
    if name == "weight_decay":
        there, here = there or 0.0, here or 0.0
    if isinstance(there, (int, float)) and isinstance(here, (int, float)):
        same = abs(there - here) <= _CLOSE * max(abs(here), abs(there))
    else:
        same = there == here
    if not same:
        state.matches.doubt(f"The optimizer in the checkpoint has {name}={there}, and the one here {name}={here}.")
