"""The object graph that `tf.train.Checkpoint` saves: which object held which variable, and under which name."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Mapping

from replicax.compat.protocol_buffers import Message

KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"
VALUE = "VARIABLE_VALUE"
_OF_OPTIMIZER = frozenset(
    ("iter", "_iterations", "iterations", "_learning_rate", "beta1_power", "_variables", "decay", "base_optimizer")
)


@dataclasses.dataclass(frozen=True)
class SavedTensor:
    """A tensor of an object.

    Attributes:
        name: What it is of the object, such as `"VARIABLE_VALUE"`.
        full_name: The variable's own name, such as `"dense/kernel"`; empty if there was none.
        key: Its name in the checkpoint.

    Example:
        >>> from replicax.tensorflow.checkpoints import SavedTensor
        >>> SavedTensor("VARIABLE_VALUE", "dense/kernel", "model/kernel/.ATTRIBUTES/VARIABLE_VALUE").full_name
        'dense/kernel'
    """

    name: str
    full_name: str
    key: str


@dataclasses.dataclass(frozen=True)
class Slot:
    """A variable that an optimizer keeps for another one.

    Attributes:
        variable: The other variable's node.
        name: What it is, such as `"m"`.
        node: Its own node.

    Example:
        >>> from replicax.tensorflow.checkpoints import Slot
        >>> Slot(variable=3, name="m", node=7).name
        'm'
    """

    variable: int
    name: str
    node: int


@dataclasses.dataclass(frozen=True)
class Node:
    """An object.

    Attributes:
        children: The objects that it refers to: nodes by name. Several names may lead to one node, and back.
        tensors: Its own tensors.
        slots: Of an optimizer written in TensorFlow 2.10 or before (or `legacy`), the slot variables.
        saver: The name of the registered saver that wrote it; empty if there was none.

    Example:
        >>> from replicax.tensorflow.checkpoints import Node
        >>> Node({"model": 1}, (), (), "").children["model"]
        1
    """

    children: Mapping[str, int]
    tensors: tuple[SavedTensor, ...]
    slots: tuple[Slot, ...]
    saver: str

    @property
    def is_optimizer(self) -> bool:
        """Whether it is an optimizer, by what it refers to."""
        return bool(self.slots) or not _OF_OPTIMIZER.isdisjoint(self.children)


@dataclasses.dataclass(frozen=True)
class ObjectGraph:
    """The objects of a checkpoint; node 0 is the root.

    Attributes:
        nodes: The objects.

    Example:
        >>> from replicax.tensorflow.checkpoints import Node, ObjectGraph
        >>> graph = ObjectGraph((Node({"model": 1}, (), (), ""), Node({}, (), (), "")))
        >>> len(graph.nodes)
        2
    """

    nodes: tuple[Node, ...]

    @functools.cached_property
    def paths(self) -> dict[int, str]:
        """A shortest path to each node that the root leads to, such as `{0: "", 1: "model", 2: "model/layer-0"}`."""
        # Keras 3's optimizers refer to the variables that they update: a path through one is taken only if no other is.
        paths, waiting, later = {0: ""}, collections.deque([0]), collections.deque[int]()
        while waiting or later:
            is_late = not waiting
            node = (later if is_late else waiting).popleft()
            if node and not is_late and self.nodes[node].is_optimizer:
                later.append(node)
                continue
            for name, child in self.nodes[node].children.items():
                if child not in paths:
                    paths[child] = f"{paths[node]}/{name}" if node else name
                    waiting.append(child)
        return paths

    def at(self, path: str) -> int | None:
        """Returns the node that a path leads to: any of its paths, of which there may be many."""
        if path in self._nodes:
            return self._nodes[path]
        node = 0
        for name in path.split("/"):
            child = self.nodes[node].children.get(name)
            if child is None:
                return None
            node = child
        return node

    @functools.cached_property
    def _nodes(self) -> dict[str, int]:
        return {path: node for node, path in self.paths.items()}

    @functools.cached_property
    def names(self) -> dict[str, str]:
        """The paths of the variables that TensorFlow named after an optimizer that updates them, by their keys."""
        optimizers = tuple(f"{path}/" for i, path in self.paths.items() if path and self.nodes[i].is_optimizer)
        return {
            saved.key: self.paths[i]
            for i, saved in self.variables.items()
            if i in self.paths and saved.key.startswith(optimizers) and not self.paths[i].startswith(optimizers)
        }

    @functools.cached_property
    def variables(self) -> dict[int, SavedTensor]:
        """The value of each node that is a variable."""
        return {i: saved for i, node in enumerate(self.nodes) for saved in node.tensors if saved.name == VALUE}


def parsed(data: bytes) -> ObjectGraph:
    """Returns the object graph of a serialized `TrackableObjectGraph`."""
    messages = Message(data).messages(1)
    if not messages:
        raise ValueError("the object graph has no objects")
    return ObjectGraph(tuple(_node(message, len(messages)) for message in messages))


def _node(message: Message, count: int) -> Node:
    children = {child.text(2): _id(child, 1, count) for child in message.messages(1)}
    tensors = tuple(SavedTensor(saved.text(1), saved.text(2), saved.text(3)) for saved in message.messages(2))
    slots = tuple(Slot(_id(slot, 1, count), slot.text(2), _id(slot, 3, count)) for slot in message.messages(3))
    saver = "".join(saver.text(1) for saver in message.messages(4))
    return Node(children, tensors, slots, saver)


def _id(message: Message, number: int, count: int) -> int:
    node = message.unsigned(number)
    if node >= count:
        raise ValueError(f"the object graph refers to object {node} of {count}")
    return node
