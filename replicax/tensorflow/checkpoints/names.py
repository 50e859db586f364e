"""Matching checkpoints that have only names: those of TensorFlow 1's `Saver`, and Keras's HDF5 files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from replicax.checkpoint.unbuilt import is_unbuilt
from replicax.checkpoint.variable_names import keras_objects
from replicax.tensorflow.checkpoints.layer_order import (
    Here,
    Stored,
    layers_here,
    leaf_name,
    match_layers,
    match_weights,
)
from replicax.tensorflow.checkpoints.matches import Match, Matches
from replicax.tensorflow.checkpoints.paths import Walk
from replicax.tensorflow.checkpoints.targets import own_variables
from replicax.typing import PyTree


def models_in(matches: Matches) -> list[PyTree]:
    """Returns the models and layers among the objects that are built."""
    import keras

    found = keras_objects(matches.targets.objects).values()
    return [value for value in found if isinstance(value, keras.Layer) and not is_unbuilt(value)]


def match_names(matches: Matches, is_slot: Mapping[str, str]) -> None:
    """Matches tensors of a `Saver` by name: first with the paths of variables, then with layers."""
    tensors = matches.checkpoint.tensors
    for name in tensors:
        target = matches.targets.named(name)
        if target is not None and name not in is_slot and matches.is_open(name) and matches.is_free(target):
            matches.add(Match(target, name, full_name=name))
    open_ = [name for name in tensors if name not in is_slot and matches.is_open(name) and "/" in name]
    here = [layer for model in models_in(matches) for layer in layers_here(model, matches)]
    match_layers(grouped(open_), here, matches)


def match_leftovers(walk: Walk, matches: Matches) -> None:
    """Matches the layers that object paths have not matched."""
    paths, groups = walk.graph.paths, dict[str, dict[str, str]]()
    names: dict[str, str] = {}
    of_optimizers = {paths.get(pair.node, "") for pair in walk.optimizers}
    for node, saved in walk.graph.variables.items():
        path = paths.get(node, "")
        if path and matches.is_open(saved.key) and saved.key in matches.checkpoint.tensors:
            owner, _, leaf = path.rpartition("/")
            if owner and not any(owner == each or owner.startswith(f"{each}/") for each in of_optimizers if each):
                groups.setdefault(owner, {})[leaf] = saved.key
                names[owner] = saved.full_name.rpartition("/")[0].rpartition("/")[2] or owner.rpartition("/")[2]
    stored = [Stored(names[owner], owner, tensors) for owner, tensors in groups.items()]
    here = [layer for model in models_in(matches) for layer in layers_here(model, matches)]
    match_layers(stored, here, matches)


def match_layer_list(matches: Matches) -> None:
    """Matches the layers that an HDF5 file of Keras 2's lists with those of the only model, in their order."""
    layers = {name: tensors for name, tensors in matches.checkpoint.layers.items() if tensors}
    models = models_in(matches)
    if len(models) > 1:
        matches.problem(
            f"{matches.checkpoint.path.name} has the layers of one model, and there are {len(models)} here: restore "
            "the one that it is of alone."
        )
        return
    for model in models:
        ours = [layer for layer in getattr(model, "layers", ()) if layer.weights]
        if not _fits(list(layers.values()), ours, matches):
            stored = [each for tensors in layers.values() for each in grouped(tensors)]
            match_layers(stored, layers_here(model, matches), matches)
            continue
        for (name, tensors), layer in zip(layers.items(), ours, strict=True):
            _match_one(name, tensors, layer, matches)


def _fits(layers: Sequence[Sequence[str]], ours: Sequence[PyTree], matches: Matches) -> bool:
    if len(layers) != len(ours):
        return False
    return all(
        sorted(map(matches.shape, tensors)) == sorted(tuple(weight.shape) for weight in _weights(layer))
        for tensors, layer in zip(layers, ours, strict=True)
    )


def _weights(layer: PyTree) -> list[PyTree]:
    return list(layer.weights)


def _match_one(name: str, tensors: Sequence[str], layer: PyTree, matches: Matches) -> None:
    """Matches the weights of a layer, whose own layers the file does not tell apart, or only by their names."""
    here = layers_here(layer, matches)
    leaves = [leaf_name(tensor) for tensor in tensors]
    own = [leaf for each in here for leaf in each.targets]
    if sorted(leaves) == sorted(own) and len(set(own)) == len(own):
        together = {leaf: target for each in here for leaf, target in each.targets.items()}
        stored = Stored(name, name, dict(zip(leaves, tensors, strict=True)))
        match_weights(stored, Here(layer.name, True, together), matches, by_order=True)
        return
    if not here or (len(here) == 1 and own_variables(layer)):
        match_layers(grouped(tensors), here, matches)
        return
    groups = grouped(tensors)
    shapes = [[matches.shape(tensor) for tensor in group.tensors.values()] for group in groups]
    if shapes == [[target.shape for target in each.targets.values()] for each in here]:
        for group, each in zip(groups, here, strict=True):
            match_weights(group, each, matches, by_order=True)
    else:
        match_layers(groups, here, matches)


def grouped(tensors: Sequence[str]) -> list[Stored]:
    """Returns tensors as layers: those that have the same name up to the last slash."""
    groups: dict[str, dict[str, str]] = {}
    for tensor in tensors:
        owner = tensor.rpartition("/")[0]
        groups.setdefault(owner, {})[leaf_name(tensor)] = tensor
    return [Stored(owner.rpartition("/")[2], owner, found) for owner, found in groups.items()]
