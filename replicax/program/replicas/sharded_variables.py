"""Replicas on sharded variables: each gathers a variable where it uses it, and keeps its own shard of each gradient.

Where variables live sharded over the replicas, what each replica does could begin by gathering all of them. Then every
device would hold the whole model while a step runs. Here the program of a replica gets its shards. It is evaluated
equation by equation, and an equation that uses a variable gathers it just then. The forward pass and the backward pass
gather it once each, and what is cheap to compute of a variable alone (a transposition, a conversion to bfloat16) is
computed again rather than kept. A sum over the replicas that has the shape of a sharded variable, as its gradient has,
becomes a reduce-scatter, and the update that follows (`program/replicas/after_meeting.py`) is partitioned like the
variable: stage 3 of ZeRO (Rajbhandari et al., 2020).

For example, two layers `y = tanh(x @ w1) @ w2` on two replicas:

    w1 = all_gather(shard1); h = tanh(x @ w1)        # w1 is not needed any more
    w2 = all_gather(shard2); y = h @ w2
    ...
    g2 = reduce_scatter(h.T @ dy)                    # half of the gradient
    w2 = all_gather(shard2); dh = dy @ w2.T          # gathered again
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend import core as jex_core
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from replicax.collectives.gradient_sums import shard_of_sum
from replicax.compat.jax import axes_of_type
from replicax.compat.jax_names import BY_ELEMENT, CALLS, MOVE_NUMBERS, SUMS_OVER_AXES
from replicax.contracts.strategy import StrategyBase
from replicax.contracts.variable_access import (
    VariableLike,
    has_split_rows,
    is_per_replica_variable,
    layout_of,
    shape_of,
)
from replicax.program.ir.interpreter import Interpreter, bind
from replicax.program.ir.jaxprs import DECISION, is_one_of, with_inner
from replicax.runtime.mesh import REPLICA_AXIS


class ReplicaSplit(NamedTuple):
    """How a value is sharded over the replicas."""

    dimension: int  # the one that is sharded over them
    beside: PartitionSpec = PartitionSpec()  # over the devices that share the work of one replica, if there are several

    def collective(self, function: Callable[[jax.Array], jax.Array], value: jax.Array) -> jax.Array:
        """Returns what a collective over the replicas makes of a value or a shard, each device doing its own part."""
        axes = {axis for axis in self.beside if axis is not None}
        if not axes:
            return function(value)
        # Otherwise XLA would begin by gathering the parts of the devices of a replica.
        mapped = jax.shard_map(function, axis_names=axes, in_specs=self.beside, out_specs=self.beside)
        result: jax.Array = mapped(value)
        return result


@dataclasses.dataclass(frozen=True)
class ReplicaShard:
    """A replica's shard of a value, and cheap operations on the whole value that have not been done yet."""

    array: jax.Array
    split: ReplicaSplit
    pending: tuple[jex_core.JaxprEqn, ...] = ()  # the operations: equations of one operand

    def whole(self, needed_with: Sequence[jax.Array] = ()) -> jax.Array:
        """Returns the whole value, gathered from all replicas when what it is `needed_with` is computed."""
        # Otherwise XLA would gather each variable once, as early as it can, and keep it for the backward pass.
        array = self.array
        for each in needed_with[:1]:
            array = _not_before(each, array)
        gather = functools.partial(
            jax.lax.all_gather, axis_name=REPLICA_AXIS, axis=self.split.dimension, tiled=True, to="invarying"
        )
        value = self.split.collective(gather, array)
        for equation in self.pending:
            [value] = bind(equation, [value])
        return value

    def own(self) -> jax.Array:
        """Returns the shard of the value after the pending operations."""
        if not all(is_one_of(equation, BY_ELEMENT) for equation in self.pending):
            return own_shard(self.whole(), self.split.dimension)
        value = self.array
        for equation in self.pending:
            [value] = bind(equation, [value])
        return value


def _not_before(other: jax.Array, array: jax.Array) -> jax.Array:
    """Returns `array`, which XLA believes to depend on `other`."""
    if not other.size or not jnp.issubdtype(other.dtype, jnp.number):
        return array
    # XLA takes optimization barriers away before it looks for what is computed twice, at least on CPUs. So here is a
    # choice between `array` and zeros whose outcome the compiler does not know.
    number = other[(0,) * other.ndim]
    bits = jax.lax.bitcast_convert_type(jnp.real(number).astype(jnp.float32), jnp.int32)
    return jnp.where((bits & 1) < 2, array, jnp.zeros_like(array))


def own_shard(value: jax.Array, dimension: int) -> jax.Array:
    """Returns this replica's shard of a value that it has as a whole."""
    size = value.shape[dimension] // jax.lax.axis_size(REPLICA_AXIS)
    start = jax.lax.axis_index(REPLICA_AXIS) * size
    return jax.lax.dynamic_slice_in_dim(value, start, size, dimension)


class ShardedEvaluation(Interpreter):
    """Evaluates equations inside `jax.shard_map`, some of whose values are shards."""

    def __init__(self, splits: Mapping[tuple[int, ...], ReplicaSplit]):
        rules = dict.fromkeys(MOVE_NUMBERS, _moved) | dict.fromkeys(CALLS, self._called)
        super().__init__(rules | dict.fromkeys(SUMS_OVER_AXES, self._sums), other=_gathered)
        # By the shapes of the sharded variables. A sum over the replicas that has one of these shapes becomes a shard.
        self._splits = splits

    def _called(self, equation: jex_core.JaxprEqn, operands: Sequence[Any]) -> Sequence[Any]:
        sums = any(is_one_of(each, SUMS_OVER_AXES) for each in with_inner(equation))
        is_entered = sums or any(isinstance(each, ReplicaShard) for each in operands)
        return self.enter(equation, operands) if is_entered else bind(equation, operands)

    def _sums(self, equation: jex_core.JaxprEqn, operands: Sequence[Any]) -> Sequence[Any]:
        """Returns the sums of an equation: each that has the shape of a sharded variable as a shard."""
        if equation.params["axes"] != (REPLICA_AXIS,):
            return _gathered(equation, operands)
        whole = list(map(whole_value, operands))
        scattered = list(map(self._is_scattered, whole))
        kept = [each for each, flag in zip(whole, scattered, strict=True) if not flag]
        others = iter(bind(equation, kept) if kept else ())
        return [
            self._scattered_sum(each) if flag else next(others) for each, flag in zip(whole, scattered, strict=True)
        ]

    def _is_scattered(self, value: jax.Array) -> bool:
        varies = REPLICA_AXIS in axes_of_type(jax.typeof(value))
        return varies and value.shape in self._splits and jnp.issubdtype(value.dtype, jnp.inexact)

    def _scattered_sum(self, value: jax.Array) -> ReplicaShard:
        split = self._splits[value.shape]
        scatter = functools.partial(shard_of_sum, dimension=split.dimension)
        return ReplicaShard(split.collective(scatter, value), split)


def whole_value(value: Any) -> Any:
    """Returns a value of an evaluation as a whole array."""
    return value.whole() if isinstance(value, ReplicaShard) else value


@dataclasses.dataclass(frozen=True)
class Sharded:
    """Which values are sharded over the replicas of one `run`."""

    variables: list[ReplicaSplit | None]  # for each variable that is read
    shapes: dict[tuple[int, ...], ReplicaSplit]  # by the shapes of these variables; gradients of them are sharded too
    # Those that only the update reads: they are where the strategy has an optimizer's variables.
    in_update: list[VariableLike]


def sharded_in(
    strategy: StrategyBase,
    inputs: Sequence[VariableLike],
    outputs: Sequence[VariableLike],
    needed: Sequence[int],
    replicas: int,
) -> Sharded:
    """Returns what is sharded over replicas, which read the variables of `inputs` at the positions `needed`."""
    assigned, read = set(map(id, outputs)), set(needed)  # Only the update reads the others.
    in_update = [
        variable
        for i, variable in enumerate(inputs)
        if replicas == strategy.num_replicas_in_sync
        and i not in read
        and id(variable) in assigned
        and layout_of(variable) is None
        and not is_per_replica_variable(variable)
        and not has_split_rows(variable)
    ]
    updated = set(map(id, in_update))
    shardings = [
        strategy.optimizer_sharding(v) if id(v) in updated else strategy.placement.program_sharding(v, replicas)
        for v in inputs
    ]
    splits = list(map(split_over_replicas, shardings, inputs))
    shapes = {shape_of(v): split for v, split in zip(inputs, splits, strict=True) if split is not None}
    return Sharded(splits, shapes, in_update)


def split_over_replicas(sharding: Sharding | None, variable: VariableLike) -> ReplicaSplit | None:
    """Returns how a variable is sharded over the replicas; None if each has all of it."""
    return None if is_per_replica_variable(variable) or has_split_rows(variable) else split_of(sharding)


def split_of(sharding: Sharding | None) -> ReplicaSplit | None:
    """Returns how a value with a sharding is sharded over the replicas; None if each has all of it."""
    if not isinstance(sharding, NamedSharding) or sharding.mesh.size == 1:
        return None
    if REPLICA_AXIS not in sharding.spec:
        return None
    beside = PartitionSpec(*(None if axis == REPLICA_AXIS else axis for axis in sharding.spec))
    return ReplicaSplit(list(sharding.spec).index(REPLICA_AXIS), beside)


def _moved(equation: jex_core.JaxprEqn, operands: Sequence[Any]) -> Sequence[Any]:
    """The rule for what is put off until the value is whole."""
    if DECISION.is_on(equation):
        return operands
    if len(operands) == 1 and isinstance(operands[0], ReplicaShard) and not equation.effects:
        return [dataclasses.replace(operands[0], pending=(*operands[0].pending, equation))]
    return _gathered(equation, operands)


def _gathered(equation: jex_core.JaxprEqn, operands: Sequence[Any]) -> Sequence[jax.Array]:
    """The rule for what needs whole values."""
    others = [each for each in operands if isinstance(each, jax.Array)]
    return bind(equation, [each.whole(others) if isinstance(each, ReplicaShard) else each for each in operands])


def spec_of_shard(split: ReplicaSplit | None, spec: PartitionSpec) -> PartitionSpec:
    """Returns the spec of a value that is sharded over the replicas; `spec` if it is not."""
    return spec if split is None else PartitionSpec(*[None] * split.dimension, REPLICA_AXIS)
