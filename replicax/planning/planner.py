"""From a traced program to its plan: state from where the strategy puts it, the rest from the compiled program."""

from __future__ import annotations

import importlib.metadata
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from replicax.collectives.hlo import axes_of_groups, collectives
from replicax.compat.jax_errors import lacks_memory
from replicax.compat.jax_tracing import whole_stacks
from replicax.contracts.placement import MIRRORED, Placement
from replicax.contracts.strategy import StrategyBase, or_null, owner_of
from replicax.contracts.variable_access import (
    TreeLeaf,
    VariableLike,
    array_of,
    dtype_of,
    has_array,
    is_trained,
    name_of,
    shape_of,
)
from replicax.planning.buffers import BATCH, buffers_of, refused_buffers
from replicax.planning.calibration import Calibration, kept
from replicax.planning.compiling import NOT_COMPILED, compiled
from replicax.planning.report import ESTIMATED, OPTIMIZER, OTHER, PARAMETERS, Held, Memory, Plan, Sent
from replicax.planning.topologies import Chip, Topology
from replicax.planning.work import Work, work_of
from replicax.program.lifting import Program
from replicax.runtime.transfer import beside_device
from replicax.typing import PyTree
from replicax.values import is_per_replica

TRAIN, PREDICT = "train", "predict"
# A step that is far from the limits of its devices, as most are: the parts of them that it reaches.
_COMPUTES, _SENDS = 0.4, 0.6
_LONGEST, _LONGEST_STRATEGY = 200, 90


class Argument(TreeLeaf):
    """An array among the arguments of a step."""

    def __init__(self, name: str, value: Any, position: int):
        super().__init__(name, value)
        self.position, self.kind = position, OTHER

    @property
    def bytes(self) -> int:
        """Its bytes on each device."""
        return _bytes(shape_of(self), self.dtype, getattr(self.value, "sharding", None))


def kind_of(program: Program, arrays: Sequence[Any], traced: jax.stages.Traced) -> str:
    """Returns whether a step trains: it assigns variables that are trained, or returns a state that it was given."""
    if any(map(is_trained, program.variables.written)):
        return TRAIN
    return TRAIN if any(_state_among(arguments_of(program, arrays), traced)) else PREDICT


def plan_of(
    program: Program,
    arrays: Sequence[Any],
    on: Topology,
    hosts: int = 1,
    others: Iterable[VariableLike] = (),
    *,
    compiles_all: bool = True,
    patience: float | None = None,
) -> Plan:
    """Returns the plan of a program with arguments like `arrays`; `others` are variables that it does not use.

    It is compiled; unless `compiles_all`, only if its state and batch fit. `patience` is for how many seconds to wait
    for the code of TPUs (`compiling.compiled`).

    Raises:
        ProgramError: The strategy cuts steps in parts.
    """
    strategy = or_null(_strategy_of(program))
    traced = program.trace(arrays)
    arguments = arguments_of(program, arrays)
    is_state = _state_among(arguments, traced)
    state = [*held_by(variables_of(program), program, strategy), *held_by(others, None, strategy)]
    state += [_held_argument(each) for each, is_own in zip(arguments, is_state, strict=True) if is_own]
    batch = sum(each.bytes for each, is_own in zip(arguments, is_state, strict=True) if not is_own)
    work = work_of(traced.jaxpr)
    begin, refused, by = time.perf_counter(), "", _compiler(on)
    memory, text, accessed = NOT_COMPILED
    fits = on.memory is None or sum(each.bytes for each in state) + batch <= on.memory
    try:
        if compiles_all or fits:
            with whole_stacks():
                lowered = traced.lower()
                memory, text, accessed = compiled(lowered, by, patience if on.platform == "tpu" else None, on.memory)
    except Exception as error:
        if not lacks_memory(error):
            raise
        refused = str(error)
    seconds = time.perf_counter() - begin
    sent = _sent(text, strategy.placement, work) if text else ()
    has = buffers_of(text, _names(program, arrays, arguments, is_state)) if text else None
    seconds_of_step, seconds_by = None, ""
    if memory is not None:
        calibration = kept() if on.platform == "cpu" else None
        if on.chip is not None:
            seconds_of_step = _range(on.chip, on.size, work, memory, sent, accessed, _sizes(strategy.placement))
            seconds_by = "published figures of the device"
        elif calibration is not None:
            seconds_of_step = _calibrated(calibration, on.size, hosts, work, sent, accessed)
            seconds_by = calibration.origin
    return Plan(
        step=program.name,
        kind=TRAIN if any(map(is_trained, program.variables.written)) or any(is_state) else PREDICT,
        on=on,
        hosts=hosts,
        strategy=shown_strategy(strategy),
        state=tuple(state),
        batch=batch,
        memory=memory,
        refused=first_words(refused) if refused else "",
        largest=has.largest if has is not None else refused_buffers(refused),
        over_time=has.over_time if has is not None else (),
        collectives=sent,
        flops=work.flops,
        not_counted=tuple(sorted(work.unknown)),
        seconds=seconds_of_step,
        seconds_by=seconds_by,
        compile_seconds=seconds,
    )


def shown_strategy(strategy: StrategyBase) -> str:
    """Returns the strategy as it shows itself, or its name alone where it would list many devices."""
    shown = repr(strategy)
    return shown if len(shown) <= _LONGEST_STRATEGY else type(strategy).__name__


def _strategy_of(program: Program) -> StrategyBase | None:
    owners = (owner_of(variable) for variable in program.variables.written)
    return program.strategy or next((owner for owner in owners if owner is not None), None)


# State.


def _kinds(variables: Sequence[VariableLike]) -> list[str]:
    # Keras's optimizers keep what they have under their name, beside their counter of steps.
    optimizers = tuple(
        f"{name.rpartition('/')[0]}/" for name in map(name_of, variables) if name.rpartition("/")[2] == "iteration"
    )
    return [
        PARAMETERS if is_trained(each) else OPTIMIZER if optimizers and name_of(each).startswith(optimizers) else OTHER
        for each in variables
    ]


def variables_of(program: Program) -> list[VariableLike]:
    """Returns the variables that a program uses, each once."""
    variables = program.variables
    return list({id(each): each for each in (*variables.updated, *variables.constant, *variables.written)}.values())


def held_by(variables: Iterable[VariableLike], program: Program | None, strategy: StrategyBase) -> list[Held]:
    """Returns what variables take on each device, where a program or else their arrays have them."""
    variables = list(variables)
    found = []
    for each, kind in zip(variables, _kinds(variables), strict=True):
        sharding = program.variables.sharding(each) if program is not None else None
        if sharding is None and has_array(each):
            sharding = array_of(each).sharding
        name = name_of(each)
        shape = tuple(array_of(each).shape) if has_array(each) else shape_of(each)
        is_beside = beside_device(sharding) is not None
        where = strategy.placement.described(each) if strategy.placement.replicas > 1 else MIRRORED
        count = 0 if is_beside else _bytes(shape, dtype_of(each), sharding)
        found.append(
            Held(name, kind, shape, str(_dtype(dtype_of(each))), f"{where}, on the host" if is_beside else where, count)
        )
    return found


def _held_argument(leaf: Argument) -> Held:
    sharding = getattr(leaf.value, "sharding", None)
    where = MIRRORED if sharding is None or sharding.is_fully_replicated else str(tuple(getattr(sharding, "spec", ())))
    return Held(leaf.name, leaf.kind, shape_of(leaf), str(leaf.dtype), where, leaf.bytes)


def _dtype(dtype: Any) -> Any:
    return dtype if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key) else jax.numpy.dtype(dtype)


def _bytes(shape: Sequence[int], dtype: Any, sharding: Any) -> int:
    part = shape if sharding is None or len(sharding.device_set) == 1 else sharding.shard_shape(tuple(shape))
    return math.prod(part) * int(_dtype(dtype).itemsize)


def _names(
    program: Program, arrays: Sequence[Any], arguments: Sequence[Argument], is_state: Sequence[bool]
) -> dict[str, tuple[str, str]]:
    """Returns the name and kind of each array that the compiled program is given, by JAX's name for it."""
    updated, constant = program.variables.updated, program.variables.constant
    names = [*(f"updated[{i}]" for i in range(len(updated))), *(f"constant[{i}]" for i in range(len(constant)))]
    variables = [*updated, *constant]
    found = dict(zip(names, zip(map(name_of, variables), _kinds(variables), strict=True), strict=True))
    owns = zip(arguments, is_state, strict=True)
    known = {id(each.value): (each.name, each.kind if is_own else BATCH) for each, is_own in owns}
    places = {"donated": 0, "kept": 0}
    for array, is_donated in zip(arrays, program.donated, strict=True):
        group = "donated" if is_donated else "kept"
        found[f"{group}[{places[group]}]"] = known.get(id(array), ("an argument", BATCH))
        places[group] += 1
    return found


def arguments_of(program: Program, arrays: Sequence[Any]) -> list[Argument]:
    """Returns the arrays among the arguments of a step, with their names."""
    args, kwargs = program.arguments(list(arrays))
    found: list[Argument] = []
    for position, tree in enumerate((*args, *kwargs.values())):
        paths, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_per_replica)
        for path, leaf in paths:
            value = leaf.stacked if is_per_replica(leaf) else leaf
            if isinstance(value, (jax.Array, np.ndarray)):
                name = jax.tree_util.keystr(tuple(path), simple=True, separator="/")
                each = Argument(f"argument {position}" + f": {name}" * bool(name), value, position)
                each.kind = _kind_in(tree, path)
                if each.kind == PARAMETERS and not jax.dtypes.issubdtype(each.dtype, np.inexact):
                    each.kind = OTHER  # a counter of steps, a random key
                found.append(each)
    return found


def _kind_in(tree: PyTree, path: Sequence[Any]) -> str:
    """Returns whether a leaf of a state is a parameter or an optimizer's: it is in one of optax's `...State`."""
    for key in path:
        if type(tree).__name__.endswith("State"):
            return OPTIMIZER
        name = getattr(key, "name", None)
        index = getattr(key, "idx", getattr(key, "key", None))
        tree = getattr(tree, name) if name is not None and hasattr(tree, name) else tree[index]
        if is_per_replica(tree):
            break
    return PARAMETERS


def _state_among(arguments: Sequence[Argument], traced: jax.stages.Traced) -> list[bool]:
    """Returns which arguments are state: all arrays of an argument come back with their shapes and dtypes."""
    returned: dict[tuple[Any, ...], int] = {}
    for out in jax.tree.leaves(traced.out_info):
        key = (tuple(out.shape), str(out.dtype))
        returned[key] = returned.get(key, 0) + 1
    flags: dict[int, bool] = {}
    for position in dict.fromkeys(each.position for each in arguments):
        own = [each for each in arguments if each.position == position]
        left = dict(returned)
        for each in own:
            key = (shape_of(each), str(each.dtype))
            left[key] = left.get(key, 0) - 1
        is_batch = any(shape_of(each) == () for each in own) and len(own) == 1
        flags[position] = not is_batch and all(count >= 0 for count in left.values())
        if flags[position]:
            returned = left
    return [flags[each.position] for each in arguments]


# The compiled program.


def _compiler(on: Topology) -> str:
    if on.platform == "tpu":
        return f"libtpu {importlib.metadata.version('libtpu')}"
    by = f"XLA for CPUs, jaxlib {importlib.metadata.version('jaxlib')}"
    return by if on.platform == "cpu" else f"{by} ({ESTIMATED})"


def _sizes(placement: Placement) -> Mapping[str, int]:
    return placement.axis_sizes if placement.replicas > 1 or placement.shards_variables else {}


def _sent(hlo: str, placement: Placement, work: Work) -> tuple[Sent, ...]:
    mesh = _sizes(placement)
    found: dict[tuple[str, str], Sent] = {}
    for each in collectives(hlo, work.lengths):
        axes = axes_of_groups(each.groups, tuple(mesh.values())) if mesh else None
        axis = " x ".join(list(mesh)[i] for i in axes) if axes else "some devices" if each.groups else "all devices"
        before = found.get((each.kind, axis), Sent(each.kind, axis, 0, 0))
        times = 1 if each.times is None else each.times
        found[each.kind, axis] = Sent(
            each.kind,
            axis,
            before.count + times,
            before.bytes + times * each.num_bytes,
            before.at_least or each.times is None,
        )
    return tuple(sorted(found.values(), key=lambda each: -each.bytes))


def first_words(text: str) -> str:
    """Returns the line of an error that says that memory lacks."""
    lines = [line.strip() for line in text.splitlines() if lacks_memory(line)]
    return (lines or [text])[0][:_LONGEST]


# Time.


def _range(
    chip: Chip,
    devices: int,
    work: Work,
    memory: Memory,
    sent: Sequence[Sent],
    accessed: float,
    mesh: Mapping[str, int],
) -> tuple[float, float]:
    """Returns the seconds of a step by a roofline, the least and the most that is likely."""
    computing = work.flops / devices / chip.flops
    # At least all arguments are read and all results written; at most what XLA counts, which takes a loop once.
    least = (memory.arguments + memory.outputs) / chip.memory_bandwidth
    most = max(least, accessed / chip.memory_bandwidth)
    sending = sum(_link_bytes(each, mesh, devices) for each in sent) / chip.link_bandwidth
    return max(computing, least, sending), computing / _COMPUTES + most + sending / _SENDS


def _calibrated(
    calibration: Calibration, devices: int, hosts: int, work: Work, sent: Sequence[Sent], accessed: float
) -> tuple[float, float]:
    """Returns the seconds of a step on virtual devices, which share the processors of a machine that was measured."""
    fast, slow = calibration.flops()
    read_fast, read_slow = calibration.bandwidth()
    count, num_bytes = sum(each.count for each in sent), sum(each.bytes for each in sent)
    least, typical = calibration.sending(count, num_bytes, devices, hosts)
    reads = accessed * devices
    return max(work.flops / fast, reads / read_fast) + least, work.flops / slow + reads / read_slow + typical


def _link_bytes(sent: Sent, mesh: Mapping[str, int], devices: int) -> float:
    """Returns the bytes that a device sends and receives for collectives, by an algorithm that sends the least."""
    along = math.prod(mesh[axis] for axis in sent.axis.split(" x ")) if sent.axis.split(" x ")[0] in mesh else devices
    if sent.kind in ("collective-permute", "collective-broadcast"):
        return 2.0 * sent.bytes
    once = 2.0 * sent.bytes * (along - 1) / along  # sent, and received
    return 2 * once if sent.kind == "all-reduce" else once
