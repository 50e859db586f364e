"""Matching by object path: the objects in a checkpoint and those here are walked together, by the names of what they
refer to.

`tf.train.Checkpoint` saves the objects. A file of Keras's (`layers/dense/vars/0`) has paths, which are a tree of
objects as well.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from replicax.checkpoint.contents import is_value
from replicax.checkpoint.unbuilt import is_unbuilt
from replicax.checkpoint.variable_names import is_keras_object, is_variable
from replicax.tensorflow.checkpoints.matches import Match, Matches
from replicax.tensorflow.checkpoints.object_graph import VALUE, Node, ObjectGraph, SavedTensor
from replicax.tensorflow.checkpoints.targets import child_of, own_variables
from replicax.typing import PyTree

_BY_ORDER = "layer_with_weights-"  # How TensorFlow names the layers of a model by their order,
_LISTS = ("_operations", "_layers", "layers")  # and where Keras has them.


class Pair(NamedTuple):
    """An object in the checkpoint and what it is here."""

    node: int  # its index in the object graph
    value: PyTree  # the object here
    path: str  # its path here, in a checkpoint of replicax
    by_order: bool  # whether a place in an order led to it


class Walk:
    """The walk through the objects of a checkpoint and those here."""

    def __init__(self, graph: ObjectGraph, matches: Matches):
        self.graph, self._matches = graph, matches
        self.optimizers: list[Pair] = []
        self.layers: list[Pair] = []  # and models
        self._seen: dict[tuple[int, int], PyTree] = {}  # It holds the objects, so that no other gets their id.

    @functools.cached_property
    def leading_to_tensors(self) -> frozenset[int]:
        """The objects from which a tensor can be reached."""
        parents = collections.defaultdict[int, list[int]](list)
        for i, node in enumerate(self.graph.nodes):
            for child in node.children.values():
                parents[child].append(i)
        found, waiting = set(self.graph.variables), list(self.graph.variables)
        while waiting:
            for parent in parents[waiting.pop()]:
                if parent not in found:
                    found.add(parent)
                    waiting.append(parent)
        return frozenset(found | {i for i, node in enumerate(self.graph.nodes) if node.slots})

    def from_root(self, objects: Mapping[str, PyTree], seeds: Iterable[tuple[int, PyTree, str]] = ()) -> None:
        """Walks from the root; first from the objects that belong together as the user says."""
        given = set[str]()
        for node, value, path in seeds:
            self._walk(Pair(node, value, path, False))
            given.add(path)
        root, taken = self.graph.nodes[0].children, set[int]()
        for name, value in objects.items():
            if name and name in root:
                taken.add(root[name])
                self._walk(Pair(root[name], value, name, False))
            elif not name:
                self._walk(Pair(0, value, "", False))
        rest = {name: value for name, value in objects.items() if name and name not in root and name not in given}
        self._alone(rest, [child for name, child in root.items() if child not in taken and name != "save_counter"])

    def _alone(self, objects: Mapping[str, PyTree], nodes: list[int]) -> None:
        """Pairs the only optimizer that is left with the only one in the checkpoint, and the same for models."""
        import keras

        met = {pair.node for pair in (*self.optimizers, *self.layers)}
        nodes = [node for node in dict.fromkeys(nodes) if node not in met and node in self.leading_to_tensors]
        optimizers = {name: value for name, value in objects.items() if isinstance(value, keras.optimizers.Optimizer)}
        models = {name: value for name, value in objects.items() if isinstance(value, keras.Layer)}
        their_optimizers = [node for node in nodes if self.graph.nodes[node].is_optimizer]
        variables, root = self.graph.variables, self.graph.nodes[0].children
        their_models = [node for node in nodes if node not in their_optimizers and node not in variables]
        if any(root[name] in nodes and child_of(model, name) is not None for model in models.values() for name in root):
            their_models = [0]  # The root is the model itself: `save_weights` and SavedModels are like this.
        elif len(models) == 1:
            their_models = self._like(next(iter(models.values())), their_models)
        for ours, theirs in ((optimizers, their_optimizers), (models, their_models)):
            if len(ours) == len(theirs) == 1:
                ((name, value),) = ours.items()
                self._walk(Pair(theirs[0], value, name, False))

    def _like(self, model: PyTree, nodes: list[int]) -> list[int]:
        """Returns the objects in the checkpoint that may be a model: by what they refer to, then by their shapes."""
        children = [self.graph.nodes[node].children for node in nodes]
        leading = [{name for name, child in each.items() if child in self.leading_to_tensors} for each in children]
        alike = [
            node
            for node, names in zip(nodes, leading, strict=True)
            if any(child_of(model, name) is not None for name in names)
        ]
        if len(alike) > 1 and not is_unbuilt(model):
            wanted = collections.Counter(tuple(weight.shape) for weight in model.weights)
            alike = [node for node in alike if wanted <= self._shapes_below(node)] or alike
        return alike or nodes

    def _shapes_below(self, node: int) -> collections.Counter[tuple[int, ...]]:
        """Returns the shapes of the variables that an object leads to."""
        found, waiting = {node}, [node]
        while waiting:
            children = set(self.graph.nodes[waiting.pop()].children.values()) - found
            found |= children
            waiting.extend(children)
        keys = (self.graph.variables[each].key for each in found if each in self.graph.variables)
        known = self._matches.checkpoint.tensors
        return collections.Counter(known[key].shape for key in keys if key in known)

    def _walk(self, pair: Pair) -> None:
        waiting = collections.deque([pair])
        while waiting:
            pair = waiting.popleft()
            if (pair.node, id(pair.value)) in self._seen or pair.node not in self.leading_to_tensors:
                continue
            self._seen[pair.node, id(pair.value)] = pair.value
            waiting.extend(self._visit(pair))

    def _visit(self, pair: Pair) -> Iterator[Pair]:
        import keras

        node = self.graph.nodes[pair.node]
        if is_variable(pair.value) or is_value(pair.value):
            self._leaf(node, pair)
            return
        if isinstance(pair.value, keras.optimizers.Optimizer):
            self.optimizers.append(pair)
            return
        if is_keras_object(pair.value):
            self.layers.append(pair)
            if is_unbuilt(pair.value):
                return
        is_model = isinstance(pair.value, keras.Model)
        for name, child in node.children.items():
            found = child_of(pair.value, name)
            if found is not None:
                by_order = pair.by_order or name.startswith(_BY_ORDER) or (name in _LISTS and is_model)
                yield Pair(child, found, f"{pair.path}/{name}" if pair.path else name, by_order)

    def _leaf(self, node: Node, pair: Pair) -> None:
        saved = next((each for each in node.tensors if each.name == VALUE), None)
        targets = self._matches.targets
        target = targets.of(pair.value) if is_variable(pair.value) else targets.named(pair.path)
        if saved is not None and target is not None and saved.key in self._matches.checkpoint.tensors:
            self._matches.add(Match(target, saved.key, by_order=pair.by_order, full_name=saved.full_name))

    def match_leaves(self) -> None:
        """Matches what is left in each pair of layers, by shape: a weight may have another name in Keras 3."""
        for pair in self.layers:
            node = self.graph.nodes[pair.node]
            children = {child: self.graph.variables[child] for child in node.children.values()
                        if child in self.graph.variables}  # fmt: skip
            open_ = [saved for saved in children.values() if self._matches.is_open(saved.key)
                     and saved.key in self._matches.checkpoint.tensors]  # fmt: skip
            targets = [self._matches.targets.of(variable) for variable in own_variables(pair.value)]
            free = [target for target in targets if target is not None and self._matches.is_free(target)]
            for saved in open_:
                shape = self._matches.shape(saved.key)
                ours = [target for target in free if target.shape == shape]
                theirs = [each for each in open_ if self._matches.shape(each.key) == shape]
                if len(ours) == len(theirs) == 1:
                    self._matches.add(Match(ours[0], saved.key, full_name=saved.full_name))


def graph_of(names: Iterable[str]) -> ObjectGraph:
    """Returns tensors whose names are paths as objects."""
    children: list[dict[str, int]] = [{}]
    tensors: list[tuple[SavedTensor, ...]] = [()]
    for name in names:
        node = 0
        for part in name.split("/"):
            if part not in children[node]:
                children[node][part] = len(children)
                children.append({})
                tensors.append(())
            node = children[node][part]
        tensors[node] = (SavedTensor(VALUE, "", name),)
    return ObjectGraph(tuple(Node(each, saved, (), "") for each, saved in zip(children, tensors, strict=True)))
