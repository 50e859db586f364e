"""The `mapping` of a restore: what the user says of which tensor belongs to which variable."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping

from replicax.checkpoint.foreign import TensorMapping
from replicax.checkpoint.variable_names import is_keras_object, is_variable
from replicax.errors import ArgumentError, CheckpointError
from replicax.tensorflow.checkpoints.matches import Match, Matches
from replicax.tensorflow.checkpoints.object_graph import ObjectGraph
from replicax.tensorflow.checkpoints.reader import SLOT, without_end
from replicax.tensorflow.checkpoints.targets import Target
from replicax.typing import PyTree

_LEFT_OUT = "the mapping leaves it out"


def apply_mapping(
    mapping: TensorMapping | None, matches: Matches, graph: ObjectGraph | None, slots: Collection[str] = ()
) -> list[tuple[int, PyTree, str]]:
    """Notes the matches that a mapping states; returns nodes it pairs with objects here, those, and their names."""
    if mapping is None:
        return []
    if isinstance(mapping, Mapping):
        return [seed for name, value in mapping.items() for seed in _apply(name, value, matches, graph, slots)]
    if not callable(mapping):
        raise ArgumentError(f"`mapping` is a dict or a function, got {mapping!r:.100}.")
    for tensor in matches.checkpoint.tensors:
        value = mapping(matches.shown(tensor))
        if value is not None:
            matches.add(Match(_target(value, matches), tensor))
    return []


def _apply(
    name: str, value: PyTree, matches: Matches, graph: ObjectGraph | None, slots: Collection[str]
) -> list[tuple[int, PyTree, str]]:
    if not isinstance(name, str):
        raise ArgumentError(f"The keys of `mapping` are names in the checkpoint, got {name!r:.100}.")
    tensors = _matching(name, matches, graph)
    if value is not None and "*" in name:
        # `dense/*` is for the weights: a slot such as `dense/kernel/Adam` follows its variable.
        tensors = {each: groups for each, groups in tensors.items() if each not in slots} or tensors
    if tensors:
        for tensor, groups in tensors.items():
            if value is None and _is_by_optimizer(name, tensor, matches, graph):
                matches.spare.setdefault(tensor, _LEFT_OUT)
            elif value is None:
                matches.ignore(tensor, _LEFT_OUT)
            else:
                filled = _filled(value, groups) if isinstance(value, str) else value
                matches.add(Match(_target(filled, matches), tensor))
        return []
    node = graph.at(name) if graph is not None else None
    if node is not None and graph is not None:
        if value is None:
            path = graph.paths[node]
            below = [i for i, each in graph.paths.items() if each == path or each.startswith(f"{path}/")]
            for i in below:
                for each in (i, *(slot.node for slot in graph.nodes[i].slots)):
                    for saved in graph.nodes[each].tensors:
                        matches.ignore(saved.key, _LEFT_OUT)
            return []
        found, path = _object(value, matches)
        if found is not None:
            return [(node, found, path)]
    close = difflib.get_close_matches(name, map(matches.shown, matches.checkpoint.tensors), 3, 0.4)
    hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
    raise CheckpointError(f"`mapping` names {name!r}, which the checkpoint {matches.checkpoint.path} lacks.{hint}")


def _matching(name: str, matches: Matches, graph: ObjectGraph | None) -> dict[str, tuple[str, ...]]:
    """Returns the tensors of a name or pattern, with what stands for each star."""
    pattern = _pattern(name)
    found: dict[str, tuple[str, ...]] = {}
    aliases = {saved.key: saved.full_name for saved in graph.variables.values()} if graph is not None else {}
    for tensor in matches.checkpoint.tensors:
        names = (matches.shown(tensor), tensor, without_end(tensor), _of_slot(tensor), aliases.get(tensor, tensor))
        for alias in names:
            match = pattern.fullmatch(alias)
            if match is not None:
                found[tensor] = match.groups()
                break
    node = graph.at(name) if graph is not None else None
    if graph is not None and node in graph.variables and graph.variables[node].key in matches.checkpoint.tensors:
        found.setdefault(graph.variables[node].key, ())
    return found


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile("(.*?)".join(map(re.escape, name.split("*"))))


def _of_slot(tensor: str) -> str:
    """Returns the name of a slot by its optimizer: `"opt/m/net/kernel"` of `"net/kernel/.OPTIMIZER_SLOT/opt/m"`."""
    owner, _, slot = without_end(tensor).partition(SLOT)
    return f"{slot}/{owner}" if slot else owner


def _is_by_optimizer(name: str, tensor: str, matches: Matches, graph: ObjectGraph | None) -> bool:
    """Returns whether a pattern means a weight only by the place where an optimizer refers to it."""
    if "*" not in name or graph is None or tensor not in graph.names:
        return False
    full_names = (saved.full_name for saved in graph.variables.values() if saved.key == tensor)
    return not any(_pattern(name).fullmatch(each) for each in (matches.shown(tensor), *full_names))


def _filled(value: str, groups: tuple[str, ...]) -> str:
    rest = list(groups)
    return re.sub(r"\*", lambda _: rest.pop(0) if rest else "*", value)


def _target(value: PyTree, matches: Matches) -> Target:
    target = matches.targets.named(value) if isinstance(value, str) else matches.targets.of(value)
    if target is not None:
        return target
    if is_variable(value):
        raise CheckpointError(f"`mapping` has the variable {value!r:.100}, which none of the objects has.")
    close = difflib.get_close_matches(value, matches.targets.all, 3, 0.4) if isinstance(value, str) else []
    hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
    raise CheckpointError(f"`mapping` names {value!r:.100}, which is no variable of the objects.{hint}")


def _object(value: PyTree, matches: Matches) -> tuple[PyTree, str]:
    if not isinstance(value, str):
        name = next((name for name, each in matches.targets.objects.items() if each is value), "")
        return (value, name) if is_keras_object(value) or name else (None, "")
    return matches.targets.objects.get(value), value
