"""Matching the optimizer's state in a model that Keras saved as HDF5: its tensors have names, which say for what."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from replicax.checkpoint.variable_names import keras_objects
from replicax.tensorflow.checkpoints.matches import Match, Matches
from replicax.tensorflow.checkpoints.optimizer_state import OptimizerState
from replicax.tensorflow.checkpoints.slot_names import CONFIGURED, SLOTS, classes_in

if TYPE_CHECKING:
    import keras

_WEIGHTS = "model_weights/"

# The names of slots in Keras 2's new optimizers and in Keras 3's, and the lists that have them.
_LISTS = {
    "m": "momentums",
    "v": "velocities",
    "vhat": "velocity_hats",
    "momentum": "momentums",
    "velocity": "velocities",
    "velocity_hat": "velocity_hats",
    "average_gradient": "average_gradients",
    "accumulator": "accumulators",
    "linear": "linears",
    "accumulated_grad": "accumulated_grads",
    "accumulated_delta_var": "accumulated_delta_vars",
    "average": "model_variables_moving_average",
}
_OF_ADAMAX = {"m": "m", "u": "u", "v": "u", "momentum": "m", "norm": "u"}
_CLOSE = 1e-5  # TensorFlow keeps some of the numbers in float32.
_ABSENT_IS_NONE = ("weight_decay", "clipnorm", "clipvalue", "global_clipnorm")


def optimizers_in(matches: Matches) -> list[keras.optimizers.Optimizer]:
    """Returns the optimizers among the objects."""
    import keras

    found = keras_objects(matches.targets.objects).values()
    return [value for value in found if isinstance(value, keras.optimizers.Optimizer)]


def match_hdf5_optimizer(matches: Matches) -> None:
    """Matches the state of the only optimizer."""
    for optimizer in optimizers_in(matches)[:1]:
        state = OptimizerState(optimizer, matches)
        slots = dict(_slots(matches, state))
        parts = {part for tensor in matches.checkpoint.optimizer for part in tensor.split("/")[1:-1]}
        state.decay_of_weights(classes_in(parts))
        for tensor in matches.checkpoint.optimizer:
            name = tensor.partition("/")[2].partition(":")[0]
            last = name.rpartition("/")[2]
            if last in ("iter", "iteration", "iterations"):
                state.counter(tensor)
            elif last == "learning_rate":
                state.learning_rate(tensor)
            elif state.optimizer.built:
                ends = [end for end in slots if f"/{name}".endswith(end)]
                if len(ends) == 1:
                    list_name, index = slots[ends[0]]
                    state.in_list(list_name, index, tensor)
        _match_config(state)
        if state.optimizer.built:
            state.keep_rest()


def _slots(matches: Matches, state: OptimizerState) -> Iterator[tuple[str, tuple[str, int]]]:
    """Yields how the name of each slot ends: `/m/dense/kernel`, `/dense/kernel/m`, or `/dense_kernel_momentum`."""
    lists = _OF_ADAMAX if state.kind == "Adamax" else _LISTS
    for match in matches.found.values():
        index = state.index_of(match.target.variable)
        if index is None:
            continue
        name = match.tensor.removeprefix(_WEIGHTS).partition("/")[2].partition(":")[0]
        for slot, list_name in lists.items():
            yield f"/{slot}/{name}", (list_name, index)
            yield f"/{name.replace('/', '_')}_{slot}", (list_name, index)
        for slot, list_name in state.slot_names.items():
            yield f"/{name}/{slot}", (list_name, index)


def _match_config(state: OptimizerState) -> None:
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
