"""Matching layers by name, by shape, and by their order: for what object paths have not matched.

A layer is matched only where nothing else is possible. Names that a user chose decide; then layers that have shapes as
no other; then, where both sides have as many layers whose names Keras numbered, the order in which they were made.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from replicax.compat.keras import sublayers
from replicax.tensorflow.checkpoints.matches import Match, Matches
from replicax.tensorflow.checkpoints.targets import Target, own_variables, snake_case
from replicax.typing import PyTree

if TYPE_CHECKING:
    import keras

_SHOWN = 8  # Pairs that a note lists.
_NUMBERED = re.compile(r"(.+?)(?:_(\d+))?")


@dataclasses.dataclass(frozen=True)
class Stored:
    """A layer in a checkpoint."""

    name: str
    label: str  # the name in messages
    tensors: Mapping[str, str]  # the names by what they are of the layer, such as "kernel"


@dataclasses.dataclass(frozen=True)
class Here:
    """A layer here."""

    name: str
    is_numbered: bool  # whether Keras made the name
    targets: Mapping[str, Target]  # its own variables, by their names


_Layer = TypeVar("_Layer", Stored, Here)


def layers_here(model: PyTree, matches: Matches) -> list[Here]:
    """Returns the layers of a model, at any depth, that have variables which look for a value; in their order."""
    found, place = [], {id(variable): i for i, variable in enumerate(model.weights)}
    layers = [(own_variables(layer), layer) for layer in [model, *sublayers(model)]]
    for own, layer in sorted(layers, key=lambda each: min((place.get(id(v), 0) for v in each[0]), default=0)):
        targets = [matches.targets.of(variable) for variable in own]
        free = {leaf_name(t.name): t for t in targets if t is not None and not t.is_seed and matches.is_free(t)}
        if free:
            found.append(Here(layer.name, has_numbered_name(layer), free))
    return found


def has_numbered_name(layer: keras.Layer) -> bool:
    """Returns whether Keras gave the layer its name."""
    return numbered(layer.name)[0] == snake_case(type(layer).__name__)


def numbered(name: str) -> tuple[str, int]:
    """Returns a name without the number that Keras puts at its end, and that number."""
    match = _NUMBERED.fullmatch(name)
    return (match[1], int(match[2] or 0)) if match else (name, 0)


def leaf_name(path: str) -> str:
    """Returns what a variable is of its layer: `"kernel"` for `"dense/kernel:0"`."""
    return path.rpartition("/")[2].partition(":")[0]


def match_layers(stored: Sequence[Stored], here: Sequence[Here], matches: Matches) -> None:
    """Matches layers, and says which could be matched in several ways."""
    left, right = list(stored), list(here)

    def take(a: Stored, b: Here, by_order: bool = False) -> None:
        left.remove(a)
        right.remove(b)
        match_weights(a, b, matches, by_order)

    for a, b in _same_names(left, right):
        take(a, b, by_order=b.is_numbered)
    for signature in (_names_and_shapes, _shapes):
        by_shape = _grouped(left, right, signature, matches)
        for ours, theirs in by_shape:
            if len(ours) == len(theirs) == 1:
                take(ours[0], theirs[0])
        for ours, theirs in by_shape:
            if ours and len(ours) == len(theirs) > 1 and _is_one_order(ours, theirs):
                for a, b in zip(sorted(ours, key=lambda each: numbered(each.name)[1]), theirs, strict=True):
                    take(a, b, by_order=True)
    for ours, theirs in _grouped(left, right, _shapes, matches):
        if ours and theirs:
            matches.problem(
                f"The layers {', '.join(repr(each.label) for each in ours)} in the checkpoint and "
                f"{', '.join(repr(each.name) for each in theirs)} here have the same shapes, and nothing says which "
                f"belong together. Say it, such as mapping={_example(ours[0], theirs[0], matches)}."
            )


def match_weights(stored: Stored, here: Here, matches: Matches, by_order: bool = False) -> None:
    """Matches the weights of two layers: by their names, then by shapes that only one has."""
    left, right = dict(stored.tensors), dict(here.targets)
    for name in list(left):
        if name in right:
            matches.add(Match(right.pop(name), left[name], by_order=by_order, full_name=_full(left.pop(name), matches)))
    for name, tensor in list(left.items()):
        shape = matches.shape(tensor)
        ours = [each for each, target in right.items() if target.shape == shape]
        theirs = [each for each in left.values() if matches.shape(each) == shape]
        if len(ours) == len(theirs) == 1:
            matches.add(Match(right.pop(ours[0]), left.pop(name), by_order=by_order, full_name=_full(tensor, matches)))
        elif ours and theirs:
            matches.problem(
                f"{[matches.shown(each) for each in theirs]} in the checkpoint and "
                f"{[right[each].name for each in ours]} here have "
                "the same shape, and nothing says which belong together: say it with mapping=."
            )


def check_order(matches: Matches) -> None:
    """Checks that layers which only their order has matched do not have names that say something else."""
    ordered = [each for each in matches.found.values() if each.by_order and "/" in each.full_name]
    by_shape = collections.defaultdict[Hashable, list[Match]](list)
    for match in ordered:
        by_shape[match.target.shape, leaf_name(match.full_name)].append(match)
    for group in by_shape.values():
        for i, first in enumerate(group):
            for second in group[i + 1 :]:
                if _is_crossed(first, second):
                    a, b = _layer(first.full_name), _layer(second.full_name)
                    matches.problem(
                        f"By their order {a!r} in the checkpoint is {_owner(first)!r} here and {b!r} is "
                        f"{_owner(second)!r}, but their names say the opposite, and their shapes allow both. Say "
                        "which belong together with mapping=, or build the model in the order in which it was saved."
                    )


def order_note(matches: Matches) -> list[str]:
    """Returns which layers of equal shapes only their order tells apart: none or one sentence."""
    by_shape = collections.defaultdict[Hashable, dict[str, str]](dict)
    for match in matches.found.values():
        if match.by_order:
            owner = _full(match.tensor, matches).rpartition("/")[0]
            by_shape[match.target.shape, leaf_name(match.tensor)][owner] = _owner(match)
    pairs = {owner: ours for group in by_shape.values() if len(group) > 1 for owner, ours in group.items()}
    if not pairs:
        return []
    listed = [f"{owner!r} is {ours!r}" for owner, ours in pairs.items()]
    more = f", and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return [
        "Only the order in which layers were made says which of those with equal shapes belong together; it was taken "
        f"that {', '.join(listed[:_SHOWN])}{more}. If they were made in another order when the checkpoint was saved, "
        "say it with mapping=."
    ]


def _is_crossed(first: Match, second: Match) -> bool:
    theirs = [_layer(each.full_name) for each in (first, second)]
    ours = [_layer(each.target.name) for each in (first, second)]
    if theirs[0] == theirs[1] or ours[0] == ours[1]:
        return False
    if len({numbered(name)[0] for name in (*theirs, *ours)}) == 1:
        return (numbered(theirs[0])[1] < numbered(theirs[1])[1]) != (numbered(ours[0])[1] < numbered(ours[1])[1])
    return theirs[0] == ours[1] or theirs[1] == ours[0]


def _same_names(left: Sequence[Stored], right: Sequence[Here]) -> list[tuple[Stored, Here]]:
    """Returns the layers of the same name: where Keras numbered it, only if both sides have the same numbers."""
    ours, theirs = _unique(left), _unique(right)
    pairs = []
    for name, layer in theirs.items():
        if name not in ours:
            continue
        base = numbered(name)[0]
        bases = [sorted(each for each in side if numbered(each)[0] == base) for side in (ours, theirs)]
        if not layer.is_numbered or bases[0] == bases[1]:
            pairs.append((ours[name], layer))
    return pairs


def _is_one_order(ours: Sequence[Stored], theirs: Sequence[Here]) -> bool:
    """Returns whether Keras numbered all these layers of one kind, here in the order in which the model has them."""
    bases = {numbered(name)[0] for name in (*(a.name for a in ours), *(b.name for b in theirs))}
    numbers = [numbered(each.name)[1] for each in theirs]
    distinct = len({each.name for each in ours}) == len(ours)
    return len(bases) == 1 and all(each.is_numbered for each in theirs) and numbers == sorted(numbers) and distinct


def _unique(layers: Sequence[_Layer]) -> dict[str, _Layer]:
    counts = collections.Counter(each.name for each in layers)
    return {each.name: each for each in layers if counts[each.name] == 1}


def _grouped(
    left: Sequence[Stored], right: Sequence[Here], signature: Callable[[Mapping[str, tuple[int, ...]]], Hashable],
    matches: Matches,
) -> list[tuple[list[Stored], list[Here]]]:  # fmt: skip
    groups = collections.defaultdict[Hashable, tuple[list[Stored], list[Here]]](lambda: ([], []))
    for a in left:
        groups[signature({name: matches.shape(tensor) for name, tensor in a.tensors.items()})][0].append(a)
    for b in right:
        groups[signature({name: target.shape for name, target in b.targets.items()})][1].append(b)
    return list(groups.values())


def _names_and_shapes(weights: Mapping[str, tuple[int, ...]]) -> Hashable:
    return tuple(sorted(weights.items()))


def _shapes(weights: Mapping[str, tuple[int, ...]]) -> Hashable:
    return tuple(sorted(weights.values()))


def _example(stored: Stored, here: Here, matches: Matches) -> str:
    name, tensor = next(iter(stored.tensors.items()))
    target = here.targets.get(name) or next(iter(here.targets.values()))
    return f"{{{matches.shown(tensor)!r}: {target.name!r}, ...}}"


def _full(tensor: str, matches: Matches) -> str:
    return matches.shown(tensor).partition(":")[0]


def _owner(match: Match) -> str:
    return match.target.name.rpartition("/")[0]


def _layer(path: str) -> str:
    return path.rpartition("/")[0].rpartition("/")[2]
