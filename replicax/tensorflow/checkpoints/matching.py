"""Matching a checkpoint of TensorFlow's with objects here: `matched` goes through all ways, the surest first."""

from __future__ import annotations

from collections.abc import Mapping

from replicax.checkpoint.foreign import TensorMapping
from replicax.tensorflow.checkpoints.hdf5_optimizer import match_hdf5_optimizer
from replicax.tensorflow.checkpoints.layer_order import check_order
from replicax.tensorflow.checkpoints.matches import Matches
from replicax.tensorflow.checkpoints.names import match_layer_list, match_leftovers, match_names
from replicax.tensorflow.checkpoints.optimizers import match_optimizer, match_saver_optimizer, saver_slots
from replicax.tensorflow.checkpoints.paths import Walk, graph_of
from replicax.tensorflow.checkpoints.reader import SLOT, TensorFlowCheckpoint
from replicax.tensorflow.checkpoints.targets import Targets
from replicax.tensorflow.checkpoints.user_mapping import apply_mapping
from replicax.typing import PyTree

_COUNTER = "save_counter"


def matched(
    checkpoint: TensorFlowCheckpoint, objects: Mapping[str, PyTree], mapping: TensorMapping | None = None
) -> Matches:
    """Returns which variable gets which tensor, as far as that is certain."""
    matches = Matches(checkpoint, Targets(objects))  # Objects that are not built have no targets yet.
    by_path = checkpoint.graph is not None or (checkpoint.format == "hdf5" and not checkpoint.layers)
    graph = checkpoint.graph or (graph_of(checkpoint.tensors) if by_path else None)
    slots = [] if graph is not None else saver_slots(checkpoint.tensors)
    own_slots = [slot.tensor for slot in slots] + [name for name in checkpoint.tensors if SLOT in name]
    seeds = apply_mapping(mapping, matches, checkpoint.graph, own_slots)
    _leave_out(matches)
    if graph is not None:
        walk = Walk(graph, matches)
        walk.from_root(objects, seeds)
        walk.match_leaves()
        match_leftovers(walk, matches)
        for pair in walk.optimizers:
            match_optimizer(pair, walk, matches)
    elif checkpoint.layers:
        match_layer_list(matches)
        match_hdf5_optimizer(matches)
    else:
        match_names(matches, {slot.tensor: slot.variable for slot in slots})
        match_saver_optimizer(slots, matches)
        matches.ignore("global_step", "it counts the steps")
    matches.ignore_spare()
    check_order(matches)
    for target in matches.targets.without_weights():
        matches.keep(target, "the checkpoint has no such state of a metric or random generator")
    _check_models(matches)
    return matches


def _check_models(matches: Matches) -> None:
    """Notes the models and layers of which the checkpoint has no weight: they would go on with random ones."""
    import keras

    given = {name: value for name, value in matches.targets.objects.items() if isinstance(value, keras.Layer)}
    wanted = {name: [matches.targets.of(weight) for weight in value.weights] for name, value in given.items()}
    wanted = {name: targets for name, targets in wanted.items() if targets}
    missed = [
        name
        for name, targets in wanted.items()
        if not any(target is not None and target.name in matches.found for target in targets)
    ]
    for name in missed:
        note = matches.problem if len(missed) == len(wanted) else matches.doubt
        note(
            f"No weight of {name!r} is in the checkpoint under a name that leads to it. Pass mapping={{path of the "
            f"model in the checkpoint: {name!r}}}, or restore the rest without it."
        )


def _leave_out(matches: Matches) -> None:
    """Notes the tensors that belong to nothing that is restored."""
    for name, info in matches.checkpoint.tensors.items():
        if name == f"{_COUNTER}/.ATTRIBUTES/VARIABLE_VALUE":
            matches.ignore(name, "the number of saves")
        elif "keras_api/metrics/" in name:
            matches.ignore(name, "the state of a metric, which every epoch resets")
        elif info.dtype is None or name.endswith("OBJECT_CONFIG_JSON"):
            matches.ignore(name, "only TensorFlow can read it")
