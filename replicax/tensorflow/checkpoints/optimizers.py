"""Finding an optimizer's state in a checkpoint: in the object graph, or by the names that TensorFlow 1 gave."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from replicax.tensorflow.checkpoints.hdf5_optimizer import optimizers_in
from replicax.tensorflow.checkpoints.matches import Match, Matches
from replicax.tensorflow.checkpoints.object_graph import ObjectGraph, SavedTensor
from replicax.tensorflow.checkpoints.optimizer_state import OptimizerState
from replicax.tensorflow.checkpoints.paths import Pair, Walk
from replicax.tensorflow.checkpoints.slot_names import SAVER_SLOTS, SLOTS, classes_in

_COUNTERS = ("iter", "_iterations", "iterations")
_RATES = ("learning_rate", "_learning_rate")
_POWERS = {"beta1_power": "beta_1", "beta2_power": "beta_2"}
_GLOBAL_STEPS = ("global_step", "estimator_global_step")
_NUMBERED = re.compile(r"(\w*?[A-Za-z]\w*?)(?:_(\d))?")
_SAME = {"AdamW": "Adam", "Adam": "AdamW"}  # They have the same state.
_SLOT_NAMES = frozenset(name for names in SLOTS.values() for name in names)


def match_optimizer(pair: Pair, walk: Walk, matches: Matches) -> None:
    """Matches the state of an optimizer that the object graph has."""
    graph, state = walk.graph, OptimizerState(pair.value, matches)
    node = graph.nodes[pair.node]
    own = {name: graph.variables[child] for name, child in node.children.items() if child in graph.variables}
    known = matches.checkpoint.tensors
    own = {name: saved for name, saved in own.items() if saved.key in known}
    classes = _classes(graph, pair, own.values())
    if classes and not classes & {state.kind, _SAME.get(state.kind, state.kind)}:
        name = graph.paths.get(pair.node, "")
        matches.problem(
            f"The optimizer {name!r} in the checkpoint is {' or '.join(sorted(classes))}, and the one "
            f"here is {state.kind}. Make the same here, or restore the model without it."
        )
        return
    state.decay_of_weights(classes)
    state.is_tf1 = bool(node.slots) and not any(name in own for name in (*_COUNTERS, *_RATES, "decay"))
    for name in _COUNTERS:
        if name in own:
            state.counter(own[name].key)
    for name in _GLOBAL_STEPS:
        root = graph.nodes[0].children.get(name, -1)
        if root in graph.variables and not any(name in own for name in _COUNTERS):
            state.counter(graph.variables[root].key)
    for name in _RATES:
        if name in own:
            state.learning_rate(own[name].key)
    for name, saved in own.items():
        if name in _POWERS:
            state.power(saved.key, float(getattr(state.optimizer, _POWERS[name], 0)))
        elif name in ("momentum_cache", "_u_product"):
            _product(state, saved)
        elif name not in (*_COUNTERS, *_RATES):
            state.hyperparameter(name, saved.key)
    _loss_scale(graph, pair, state)
    _slots(graph, pair, state)
    if state.optimizer.built:
        state.keep_rest()


def _classes(graph: ObjectGraph, pair: Pair, own: Iterable[SavedTensor]) -> set[str]:
    """Returns the classes that the optimizer in the checkpoint may have, by the full names of its variables."""
    names = [saved.full_name for saved in own]
    for child in graph.nodes[pair.node].children.values():
        names += [graph.variables[i].full_name for i in graph.nodes[child].children.values() if i in graph.variables]
    return classes_in({part for name in names for part in name.split("/")[:-1][:2]})


def _product(state: OptimizerState, saved: SavedTensor) -> None:
    """Matches Nadam's running product, which is its last variable."""
    for variable in state.optimizer.variables[-1:]:
        target = state.matches.targets.of(variable)
        if target is not None and state.kind == "Nadam" and state.optimizer.built:
            state.matches.add(Match(target, saved.key))


def _loss_scale(graph: ObjectGraph, pair: Pair, state: OptimizerState) -> None:
    """Matches the loss scale of Keras 2, an object of its own, or of Keras 3, in variables of the optimizer."""
    child = graph.nodes[pair.node].children.get("loss_scale")
    children = graph.nodes[child if child is not None else pair.node].children
    names = ("current_loss_scale", "good_steps") if child is not None else ("dynamic_scale", "step_counter")
    keys = {name: graph.variables[i].key for name, i in children.items() if name in names and i in graph.variables}
    if keys:
        state.loss_scale(keys.get(names[0]), keys.get(names[1]))


def _slots(graph: ObjectGraph, pair: Pair, state: OptimizerState) -> None:
    node, matches = graph.nodes[pair.node], state.matches
    if not state.optimizer.built:
        return
    variables = _variables_by_key(matches)
    for slot in node.slots:
        variable, saved = graph.variables.get(slot.variable), graph.variables.get(slot.node)
        if variable is not None and saved is not None and variable.key in variables:
            state.slot(variables[variable.key], slot.name, saved.key)
    unused = node.children.get("_momentums", node.children.get("momentums"))
    if unused is not None and state.has_no_momentum:
        for each in graph.nodes[unused].children.values():
            if each in graph.variables:
                matches.ignore(graph.variables[each].key, "the optimizer has no momentum")
    for name in state.list_names():
        child = node.children.get(f"_{name}", node.children.get(name))
        if child is not None and graph.nodes[child].children:
            _listed(graph, pair, name, child, state)


def _listed(graph: ObjectGraph, pair: Pair, name: str, child: int, state: OptimizerState) -> None:
    """Matches a list of slots, whose order is that of the variables the optimizer was built for."""
    matches, variables = state.matches, _variables_by_key(state.matches)
    slots = {int(i): graph.variables.get(node) for i, node in graph.nodes[child].children.items() if i.isdecimal()}
    trainable = graph.nodes[pair.node].children.get("_trainable_variables")  # Keras 3 saves the variables too.
    updated = graph.nodes[trainable].children if trainable is not None else {}
    by_name = _unique_full_names(graph, matches)  # Keras 2 names each slot after its variable.
    shapes, ours = {i: matches.shape(saved.key) for i, saved in slots.items() if saved}, state.shapes(name)
    # If neither says which is which, both sides must have the same shapes and names of variables at all places.
    is_one_order = [shapes.get(i, ()) for i in range(len(ours))] == ours and len(shapes) == len(ours)
    leaves = [saved.full_name.rpartition("/")[2] if saved else "" for _, saved in sorted(slots.items())]
    is_one_order = is_one_order and leaves == state.variable_names()
    for i, saved in slots.items():
        if saved is None:
            continue
        node = updated.get(str(i), -1)
        key = graph.variables[node].key if node in graph.variables else by_name.get(_of_variable(saved.full_name))
        index = state.index_of(variables[key]) if key in variables else None
        if index is None and key is None and is_one_order:
            index = i
        if index is not None:
            state.in_list(name, index, saved.key)


def _variables_by_key(matches: Matches) -> dict[str, object]:
    return {each.tensor: each.target.variable for each in matches.found.values() if each.target.variable is not None}


def _unique_full_names(graph: ObjectGraph, matches: Matches) -> dict[str, str]:
    """Returns the tensors of variables by the full names that no two of them have."""
    found: dict[str, str | None] = {}
    for saved in graph.variables.values():
        found[saved.full_name] = None if saved.full_name in found else saved.key
    return {name: key for name, key in found.items() if key is not None and key in matches.used}


def _of_variable(full_name: str) -> str:
    """Returns the name of the variable that a slot is for: `"dense/kernel"` of `"Adam/m/dense/kernel"`."""
    parts = full_name.split("/")
    at = next((i for i, part in enumerate(parts[:2]) if part in _SLOT_NAMES or part in _SHORT), None)
    return "/".join(parts[at + 1 :]) if at is not None else "/".join(parts[1:])


_SHORT = frozenset(
    ("velocity", "momentum", "average_gradient", "accumulated_grad", "accumulated_delta_var", "u", "average", "v")
)


class SaverSlot(NamedTuple):
    """A slot in a checkpoint that has only names."""

    variable: str  # the variable's tensor
    suffix: str  # what follows its name: "Adam_1", or the name of a slot of `tf.keras.optimizers.legacy`
    tensor: str  # the slot's tensor


def saver_slots(names: Iterable[str]) -> list[SaverSlot]:
    """Returns the slots among names: `dense/kernel/Adam_1` for a variable `dense/kernel`, with prefixes of scopes."""
    names, found = set(names), list[SaverSlot]()
    for name in sorted(names):
        owner, _, suffix = name.rpartition("/")
        while owner and owner not in names:
            owner = owner.partition("/")[2]
        if owner and _NUMBERED.fullmatch(suffix):
            found.append(SaverSlot(owner, suffix, name))
    return found


def match_saver_optimizer(slots: Iterable[SaverSlot], matches: Matches) -> None:
    """Matches the state of the only optimizer by the names of TensorFlow 1."""
    for optimizer in optimizers_in(matches)[:1]:
        state = OptimizerState(optimizer, matches)
        state.is_tf1 = not any(name.rpartition("/")[2] in _RATES for name in matches.checkpoint.tensors)
        _scalars(state)
        if state.optimizer.built:
            _saver_slots(list(slots), state)
            state.keep_rest()


def _scalars(state: OptimizerState) -> None:
    matches = state.matches
    by_end = {name.rpartition("/")[2]: name for name in matches.checkpoint.tensors if matches.is_open(name)}
    for name in (*_COUNTERS, *_GLOBAL_STEPS):
        if name in by_end:
            state.counter(by_end[name])
    for name in _RATES:
        if name in by_end:
            state.learning_rate(by_end[name])
    for name, attribute in _POWERS.items():
        if name in by_end:
            state.power(by_end[name], float(getattr(state.optimizer, attribute, 0)))
    if "decay" in by_end:
        state.hyperparameter("decay", by_end["decay"])


def _saver_slots(slots: list[SaverSlot], state: OptimizerState) -> None:
    variables = _variables_by_key(state.matches)
    of_variable: dict[str, list[SaverSlot]] = {}
    for slot in slots:
        of_variable.setdefault(slot.variable, []).append(slot)
    for tensor, found in of_variable.items():
        if tensor in variables:
            slots_by_name = _named(found, state)
            state.is_tf1 = not all(slot.suffix == name for name, slot in slots_by_name.items())
            for name, slot in slots_by_name.items():
                state.slot(variables[tensor], name, slot.tensor)


def _named(slots: list[SaverSlot], state: OptimizerState) -> Mapping[str, SaverSlot]:
    """Returns the slots of a variable by TensorFlow's names of them."""
    legacy = {slot.suffix: slot for slot in slots if slot.suffix in state.slot_names}
    if len(legacy) == len(slots):
        return legacy
    numbered: dict[str, dict[int, SaverSlot]] = {}
    for slot in slots:
        match = _NUMBERED.fullmatch(slot.suffix)
        if match is not None:
            numbered.setdefault(match[1], {})[int(match[2] or 0)] = slot
    for names in SAVER_SLOTS.get(state.kind, ()):
        fitting = [each for each in numbered.values() if sorted(each) == list(range(len(names)))]
        if len(fitting) == 1:
            return {name: fitting[0][i] for i, name in enumerate(names)}
    return {}
