"""Micro-batches: the parts of a batch that one step works off one after the other, and the variables in them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np

from replicax.compat.jax import is_random_key
from replicax.compat.jax_tracing import Trace
from replicax.context import StateFrame
from replicax.contracts.variable_access import VariableLike
from replicax.errors import ArgumentError, BatchError
from replicax.program.frames import OverrideFrame, ProgramFrame, ReplicaFrame, TracedFrame
from replicax.program.pytrees import Structure, flatten_inputs
from replicax.typing import Leaf, PyTree
from replicax.values.aggregation import VariableAggregation
from replicax.values.equality import Difference


@dataclasses.dataclass(frozen=True)
class Group:
    """Consecutive micro-batches of one size."""

    first: int  # the number of the first one
    count: int
    rows: int  # of each


@dataclasses.dataclass
class Batch:
    """The arguments of one call, to be dealt out to micro-batches."""

    leaves: list[Leaf]  # arrays and numbers
    structure: Structure
    rows: int
    sizes: list[int]  # rows of each micro-batch

    @classmethod
    def of(cls, args: PyTree, kwargs: PyTree, steps: int) -> Batch:
        """Returns the batch in some arguments, for `steps` micro-batches; for fewer rows than that, one for each."""
        leaves, structure = flatten_inputs((args, kwargs))
        shapes = [np.shape(leaf) for leaf in leaves if np.ndim(leaf)]
        if not shapes:
            raise ArgumentError(
                "rx.accumulate_gradients deals out the rows of its function's arguments to micro-batches, but none is "
                "an array with rows. Pass the batch to the loss function instead of capturing it: "
                "rx.accumulate_gradients(rx.value_and_grad(loss_fn, variables), steps)(batch)."
            )
        rows = shapes[0][0]
        if any(shape[0] != rows for shape in shapes):
            raise BatchError(
                "rx.accumulate_gradients deals out rows, the first dimension of all array arguments, but they differ: "
                f"shapes {shapes}. Let the loss function capture what is no part of the batch; pass random keys as "
                "jax.random.key makes them, which are scalars."
            )
        if rows == 0:
            raise BatchError(f"A batch has no rows: its arrays have shapes {shapes}. A step needs at least one row.")
        steps = min(steps, rows)
        return cls(leaves, structure, rows, [rows // steps + (i < rows % steps) for i in range(steps)])

    @property
    def groups(self) -> list[Group]:
        """The micro-batches, those of equal size together: one group or two."""
        larger = sum(size > self.sizes[-1] for size in self.sizes)
        groups = [Group(0, larger, self.sizes[0]), Group(larger, len(self.sizes) - larger, self.sizes[-1])]
        return [group for group in groups if group.count]

    def stacked(self, group: Group) -> list[jax.Array]:
        """Returns what differs between the micro-batches of a group: arrays `(group.count, group.rows, ...)`, keys."""
        start = sum(self.sizes[: group.first])
        parts = []
        for leaf in self.leaves:
            if np.ndim(leaf):
                rows = jnp.asarray(leaf)[start : start + group.count * group.rows]
                parts.append(rows.reshape(group.count, group.rows, *rows.shape[1:]))
            elif is_random_key(leaf):
                parts.append(jax.random.split(leaf, len(self.sizes))[group.first : group.first + group.count])
        return parts

    def arguments(self, parts: Sequence[jax.Array]) -> tuple[tuple[PyTree, ...], dict[str, PyTree]]:
        """Returns the arguments of one micro-batch, whose part of each array in `stacked` is given."""
        own = iter(parts)
        leaves = [next(own) if np.ndim(leaf) or is_random_key(leaf) else leaf for leaf in self.leaves]
        args, kwargs = self.structure.rebuild(leaves)
        return args, kwargs


class MicroFrame(TracedFrame):
    """The variables in one micro-batch of a step, which is traced once and repeated."""

    def __init__(
        self,
        parent: StateFrame,
        outside: Trace,
        placeholder_of: Callable[[VariableLike], jax.Array],
        shown_of: Callable[[VariableLike, jax.Array], jax.Array],  # what a reader gets of a placeholder
    ):
        self._parent = cast("ProgramFrame | ReplicaFrame | OverrideFrame", parent)
        super().__init__(outside, self._parent.accesses, placeholder_of)
        self._shown_of = shown_of
        self.how: dict[int, VariableAggregation] = {}  # by id, for variables whose values have still to be combined

    def read(self, variable: VariableLike) -> jax.Array:
        value = super().read(variable)
        return value if id(variable) in self._values else self._shown_of(variable, value)

    def lends(self, variable: VariableLike) -> bool:
        """Returns whether the step's frame lends the value of `variable`."""
        return self._parent.lends(variable)

    def holds(self, variable: VariableLike) -> bool:
        """Returns True: each replica goes on with what it had in the micro-batch before."""
        return True

    def number(self, variable: VariableLike) -> int:
        """Returns the accumulator's number in the replica's frame."""
        return self._of_replica().number(variable)

    def defer(self, variable: VariableLike, aggregate: Callable[[jax.Array], jax.Array]) -> int:
        """Returns the accumulator's number. It is combined when the step ends."""
        return self.number(variable)

    def defers(self, variable: VariableLike) -> bool:
        """Returns True: what replicas assign may differ until all micro-batches are done."""
        return True

    def postpones(self, variable: VariableLike, how: VariableAggregation) -> bool:
        """Notes how a variable's values are combined, once, when all micro-batches are done."""
        # A sum over the replicas is made in each micro-batch.
        postponed = how in (VariableAggregation.MEAN, VariableAggregation.ONLY_FIRST_REPLICA)
        if postponed:
            self.how[id(variable)] = how
        return postponed

    def decide(self, value: jax.Array, refused_if_equal: bool) -> tuple[jax.Array, Difference | None]:
        """Passes the decision on to the replica's frame."""
        return self._of_replica().decide(value, refused_if_equal)

    def _of_replica(self) -> ReplicaFrame:
        return cast(ReplicaFrame, self._parent)  # or one that passes on what it is asked
