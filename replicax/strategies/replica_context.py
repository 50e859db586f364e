"""The replica context: facts about the own replica, and collectives with the others."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol, cast

import jax
import jax.numpy as jnp

import replicax.context as context
from replicax.collectives import CommunicationOptions, CrossDeviceOps
from replicax.collectives.compression import Compression, is_of_gradients
from replicax.collectives.gradient_sums import combined, remembering
from replicax.compat.jax import vary
from replicax.contracts.called_as import called_as
from replicax.contracts.reduce_op import ReduceOp, as_mean, check_numbers
from replicax.contracts.variable_access import VariableLike
from replicax.errors import ArgumentError, ContextError, ProgramError, ReduceError
from replicax.program.call_checks import called, checked_call
from replicax.program.replicas.per_replica_arguments import without_per_replica
from replicax.runtime.mesh import REPLICA_AXIS
from replicax.strategies.base import Strategy
from replicax.strategies.gradient_memory import GradientMemory, Record
from replicax.typing import Leaf, PyTree, PyTreeFunction
from replicax.values import ManualPerReplica, normalize_axes
from replicax.values.equality import difference
from replicax.values.scattering import check_no_slices, is_slices, reduce_slices


class _Communicating(Protocol):
    """A strategy whose replicas communicate: one over a mesh."""

    cross_device_ops: CrossDeviceOps
    communication_options: CommunicationOptions
    gradient_memory: GradientMemory

    def merged_options(self, options: CommunicationOptions | None) -> CommunicationOptions:
        """Returns the strategy's options, overridden by those of one call."""


class ReplicaContext:
    """The replica that is running, inside `strategy.run`; `rx.get_replica_context()` returns it.

    Attributes:
        strategy: The strategy.
        num_replicas_in_sync: Number of replicas taking part in this step (fewer than the strategy has when a partial
            batch does not divide by them).
        batch_rows: How many rows the per-replica arguments of the running call have, on each replica.

    Example:
        >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> def replica():
        ...     context = rx.get_replica_context()
        ...     return context.all_reduce("sum", context.replica_id_in_sync_group)
        >>> strategy.local_results(strategy.run(replica))
        (Array(1, dtype=int32), Array(1, dtype=int32))
    """

    @called_as("tf.distribute.ReplicaContext")
    def __init__(self, strategy: Strategy, num_replicas: int, batch_rows: frozenset[int] = frozenset()):
        self.strategy = strategy
        self.num_replicas_in_sync = num_replicas
        self.batch_rows = batch_rows
        self._calls: Counter[int] = Counter()  # How often gradients of a variable were combined.

    @property
    def _communicating(self) -> _Communicating:
        return cast(_Communicating, self.strategy)

    @property
    def replica_id_in_sync_group(self) -> jax.Array:
        """This replica's number, from 0: an int32 scalar, known when the program runs.

        Raises:
            ContextError: Read outside of `run`.
        """
        if context.current().manual_replicas is None:
            self._check_inside()
        return jax.lax.axis_index(REPLICA_AXIS)

    @property
    def devices(self) -> tuple[jax.Device, ...]:
        """The devices of the replicas that take part in this step, in replica order."""
        return self.strategy.devices[: self.num_replicas_in_sync]

    @called_as("tf.distribute.ReplicaContext.all_reduce")
    def all_reduce(self, op: ReduceOp | str, value: PyTree, options: CommunicationOptions | None = None) -> PyTree:
        """Combines a value over replicas, inside `run`; every replica gets the result.

        Args:
            op: `"sum"` or `"mean"`. A sum keeps the dtype, as in `jax.lax.psum`, so small integers wrap around (100 +
                100 + 100 is 44 in int8; `strategy.reduce` gives 300). A mean is that of `strategy.reduce`: a float for
                integers, and it exists also where the sum does not fit in the dtype. The dtype does not depend on the
                number of replicas, and bools are refused on any number.
            value: Array that differs between replicas, or a pytree of them. `rx.IndexedSlices` become those of all
                replicas, one after the other; for a mean their values are divided by the number of replicas.
            options: `CommunicationOptions` for this call. Compression as int8 or by PowerSGD, where the strategy's
                options ask for it, is for gradients alone. A call that asks for it has no memory of what it leaves out:
                `rx.CommunicationOptions(compression=rx.collectives.Int8(error_feedback=False))`.

        Returns:
            The same pytree. The arrays are typed as equal on all replicas, so they may be assigned to mirrored
            variables. Differentiable: the gradient of a sum over replicas is the sum of their gradients.

        Raises:
            ArgumentError: `options` are none, or ask for compression with a memory.
            ReduceError: A leaf is equal on all replicas already and would be summed.
            ContextError: Called outside of `run`.
        """
        op = ReduceOp.of(op)
        self._check_inside()
        options = self._options_of_call(options)
        leaves, treedef = jax.tree_util.tree_flatten(without_per_replica(value), is_leaf=is_slices)
        reduced = iter(self._all_reduced(op, [leaf for leaf in leaves if not is_slices(leaf)], options))
        replicas, is_mean = self.num_replicas_in_sync, op is ReduceOp.MEAN
        leaves = [reduce_slices(leaf, replicas, is_mean) if is_slices(leaf) else next(reduced) for leaf in leaves]
        return jax.tree_util.tree_unflatten(treedef, leaves)

    def _options_of_call(self, options: CommunicationOptions | None) -> CommunicationOptions:
        merged = self._communicating.merged_options(options)
        compression = None if options is None else options.compression
        if is_of_gradients(compression) and compression.has_memory:
            raise ArgumentError(
                f"compression={compression!r} keeps what it leaves out for the next step, which a single all_reduce "
                "does not have. Give it to the strategy, for gradients, or ask for one without a memory, such as "
                "rx.collectives.Int8(error_feedback=False)."
            )
        if compression is None and is_of_gradients(merged.compression):
            return dataclasses.replace(merged, compression=None)
        return merged

    def _all_reduced(self, op: ReduceOp, leaves: Sequence[Leaf], options: CommunicationOptions) -> list[jax.Array]:
        arrays = [jnp.asarray(leaf) for leaf in leaves]
        for i, array in enumerate(arrays):
            check_numbers(array, i)
        sums = op is ReduceOp.SUM and self.num_replicas_in_sync > 1
        decided = [difference(array, refused_if_equal=sums) for array in arrays]
        arrays = [array for array, _ in decided]
        differing = [i for i, (_, why) in enumerate(decided) if why is not None]
        if sums and len(differing) < len(arrays):
            raise ReduceError(
                f"all_reduce('sum') got a value that is equal on all {self.num_replicas_in_sync} replicas: the sum "
                f"would be {self.num_replicas_in_sync} times the value. Gradients of rx.value_and_grad and results of "
                "all_reduce are reduced already; use them as they are."
            )
        ops = self._communicating.cross_device_ops
        reduced = combined(ops, options, op, [arrays[i] for i in differing])
        for i, result in zip(differing, reduced, strict=True):
            arrays[i] = result
        return list(map(as_mean, arrays)) if op is ReduceOp.MEAN else arrays

    def reduce_gradients(
        self, op: ReduceOp, gradients: Sequence[jax.Array | None], variables: Sequence[VariableLike]
    ) -> list[jax.Array | None]:
        """Combines each replica's gradients (the gradient boundary calls this).

        Args:
            op: A sum or a mean.
            gradients: This replica's; None for variables that the loss does not depend on.
            variables: The variables to which they belong.

        Returns:
            The combined gradients; None stays None.

        Raises:
            ProgramError: Compression has to remember something, in a function that JAX traces on its own.
        """
        connected = [gradient for gradient in gradients if gradient is not None]
        options, frame = self._communicating.communication_options, context.current().frame
        if is_of_gradients(options.compression) and frame is not None and frame.is_of_loss:
            # Derivatives of derivatives are part of a loss: they are no update that could be made up for later.
            options = dataclasses.replace(options, compression=None)
        compression = options.compression
        if is_of_gradients(compression) and compression.has_memory and self.num_replicas_in_sync > 1:
            records = self._communicating.gradient_memory.of(variables, self._calls)
            records = [record for record, gradient in zip(records, gradients, strict=True) if gradient is not None]
            found = self._remembering(op, connected, records, options, compression)
        else:
            found = combined(self._communicating.cross_device_ops, options, op, connected)
        results = iter(found)
        return [None if gradient is None else next(results) for gradient in gradients]

    def _remembering(
        self,
        op: ReduceOp,
        gradients: list[jax.Array],
        records: Sequence[Record],
        options: CommunicationOptions,
        compression: Compression,
    ) -> list[jax.Array]:
        before = [{name: variable.value for name, variable in record.items()} for record in records]
        ops = self._communicating.cross_device_ops
        sums, memory = remembering(ops, options, compression, op, gradients, before)
        try:
            for record, kept in zip(records, memory, strict=True):
                for name, value in kept.items():
                    record[name].assign(value)
        except ProgramError as error:
            raise ProgramError(
                f"{compression!r} keeps what it leaves out of gradients in variables, but rx.value_and_grad was called "
                "inside a function that JAX traces on its own (jax.lax.scan, cond, jax.checkpoint, jax.jit), which "
                "cannot assign any. Call it outside of that function, or compress without a memory: "
                "rx.collectives.Int8(error_feedback=False)."
            ) from error
        return sums

    def all_gather(self, value: PyTree, axis: int = 0, options: CommunicationOptions | None = None) -> PyTree:
        """Concatenates a value's components along `axis`, inside `run`; every replica gets the result.

        Args:
            value: Array of at least one dimension, or a pytree of them; the same shape on all replicas.
            axis: The dimension; the result is `num_replicas_in_sync` times as long there.
            options: Accepted as in tf.distribute, and checked; they change nothing about gathering.

        Raises:
            ArgumentError: `options` are none.
            ReduceError: Bad axis, or a scalar.
            ContextError: Called outside of `run`.
        """
        self._check_inside()
        self._communicating.merged_options(options)
        check_no_slices(value, "all_gather")

        def gathered(leaf: Leaf) -> jax.Array:
            array = jnp.asarray(leaf)
            (dimension,) = normalize_axes(axis, array.shape)
            own, everywhere = vary(array, REPLICA_AXIS), "invarying"
            result: jax.Array = jax.lax.all_gather(own, REPLICA_AXIS, axis=dimension, tiled=True, to=everywhere)
            return result

        return jax.tree_util.tree_map(gathered, without_per_replica(value))

    def merge_call(
        self, merge_fn: PyTreeFunction, args: Sequence[PyTree] = (), kwargs: Mapping[str, PyTree] | None = None
    ) -> PyTree:
        """Calls `merge_fn(strategy, *args, **kwargs)` once for all replicas, in cross-replica context.

        Args:
            merge_fn: Gets values that differ between replicas as per-replica values, and equal ones bare. It may use
                `strategy.reduce`, `gather` and `update`.
            args: Arguments, pytrees of arrays.
            kwargs: Keyword arguments.

        Returns:
            What `merge_fn` returns; of per-replica values each replica gets its component.

        Raises:
            ArgumentError: As for `strategy.run`.
            ContextError: Called outside of `run`.
        """
        self._check_inside()
        given = checked_call("merge_fn", merge_fn, args, kwargs)
        merged_args, merged_kwargs = jax.tree_util.tree_map(self._merged, without_per_replica(given))
        with context.entered(replica=None):
            result = called("merge_fn", merge_fn, merged_args, merged_kwargs, self.strategy)
        return without_per_replica(result)

    def _merged(self, leaf: Leaf) -> PyTree:
        if not isinstance(leaf, jax.Array):
            return leaf
        leaf, why = difference(leaf)
        return leaf if why is None else ManualPerReplica(leaf, self.num_replicas_in_sync)

    def _check_inside(self) -> None:
        if context.current().replica is not self:
            raise ContextError(
                "This replica context is not the running one: call rx.get_replica_context() inside the replica "
                "function, each time it runs. Outside of strategy.run use strategy.reduce and strategy.gather."
            )

    def __repr__(self) -> str:
        return f"ReplicaContext(strategy={self.strategy!r}, num_replicas_in_sync={self.num_replicas_in_sync})"
