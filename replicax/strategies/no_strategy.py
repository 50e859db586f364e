"""The strategy that is current when there is none: it passes everything through, so library code is written once."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Self

import jax
import jax.numpy as jnp

import replicax.context as context
from replicax.checks import call
from replicax.collectives import CommunicationOptions
from replicax.contracts.called_as import called_as
from replicax.contracts.reduce_op import ReduceOp, as_mean, check_numbers
from replicax.contracts.variable_access import VariableLike
from replicax.data import InputContext, InputOptions, ValueContext
from replicax.data.sources import can_open
from replicax.errors import ArgumentError, ContextError
from replicax.program.call_checks import called, check_function
from replicax.program.pytrees import is_number_like
from replicax.strategies.base import Strategy
from replicax.strategies.reductions import values_of
from replicax.strategies.replica_context import ReplicaContext
from replicax.strategies.scope import Scope
from replicax.typing import PyTree, PyTreeFunction
from replicax.values.containers import flattened, settings_among
from replicax.values.scattering import is_slices


class DefaultStrategy(Strategy):
    """Runs code as it is, with one replica and no placement; `rx.get_strategy()` returns it outside every scope."""

    mesh = None

    @property
    def num_replicas_in_sync(self) -> int:
        """Always 1."""
        return 1

    @contextlib.contextmanager
    def _in_scope(self, scope: Scope[Self]) -> Iterator[None]:
        """Does nothing; fails inside the scope of a strategy."""
        if context.current().strategy is not None:
            raise ContextError(
                f"The default strategy's scope was opened inside that of {context.current().strategy!r}."
            )
        with context.entered(scope=scope):
            yield

    def _run(
        self, fn: PyTreeFunction, args: tuple[PyTree, ...], kwargs: dict[str, PyTree], donate: tuple[int, ...]
    ) -> PyTree:
        del donate
        check_function("`fn`", fn)
        return fn(*args, **kwargs)

    def _update(
        self, variable: VariableLike, fn: PyTreeFunction, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]
    ) -> PyTree:
        with context.entered(cross_replica=True):
            return fn(variable, *args, **kwargs)

    def local_results(self, value: PyTree) -> tuple[PyTree, ...]:
        """Returns a tuple of `value` alone."""
        return (values_of(value),)

    def replicate(self, tree: PyTree) -> PyTree:
        """Returns a copy of the arrays and numbers in `tree` on the default device."""
        leaves, treedef = flattened(tree)
        settings = settings_among(leaves, tree)
        for i, leaf in enumerate(leaves):
            if i not in settings and is_number_like(leaf):
                leaves[i] = jnp.array(leaf, copy=True)
        return jax.tree_util.tree_unflatten(treedef, leaves)

    def distribute_dataset(
        self, dataset: PyTree, options: InputOptions | None = None, *, batch_size: int | None = None
    ) -> PyTree:
        """Returns `dataset` itself, untouched."""
        del options
        if batch_size is not None:
            raise ArgumentError("The default strategy returns a dataset as it is; it does not cut arrays into batches.")
        if not can_open(dataset):
            raise ArgumentError(
                f"The default strategy returns a dataset as it is, and got {dataset!r:.100}, which is nothing to "
                "iterate over. Give an iterable of batches, or what a function returns in place of the function."
            )
        return dataset

    def distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], PyTree], options: InputOptions | None = None
    ) -> PyTree:
        """Returns `dataset_fn(InputContext())`."""
        del options
        return call("dataset_fn", dataset_fn, (InputContext(),))

    def distribute_values_from_function(self, value_fn: Callable[[ValueContext], PyTree]) -> PyTree:
        """Returns `value_fn(ValueContext())`."""
        check_function("`value_fn`", value_fn)
        return call("value_fn", value_fn, (ValueContext(),))

    def _facts(self) -> dict[str, object]:
        return {"replicas in sync": 1, "devices": "whatever JAX uses"}

    def __repr__(self) -> str:
        return "DefaultStrategy()"


class DefaultReplicaContext(ReplicaContext):
    """The replica context outside every strategy: replica 0 of 1; there is nobody to talk to."""

    replica_id_in_sync_group = 0  # type: ignore[assignment] # Known here, and no array.

    def __init__(self) -> None:
        super().__init__(default_strategy(), num_replicas=1)

    @called_as("tf.distribute.ReplicaContext.all_reduce")
    def all_reduce(self, op: ReduceOp | str, value: PyTree, options: CommunicationOptions | None = None) -> PyTree:
        """Returns `value`, of the dtype that it would have from several replicas."""
        CommunicationOptions().merge(options)  # Checks them.
        is_mean = ReduceOp.of(op) is ReduceOp.MEAN
        leaves, treedef = jax.tree_util.tree_flatten(value, is_leaf=is_slices)
        for i, leaf in enumerate(leaves):
            if not is_slices(leaf):
                check_numbers(jnp.asarray(leaf), i)
                if is_mean and not jnp.issubdtype(jnp.result_type(leaf), jnp.inexact):
                    leaves[i] = as_mean(jnp.asarray(leaf))
        return jax.tree_util.tree_unflatten(treedef, leaves)

    def all_gather(self, value: PyTree, axis: int = 0, options: CommunicationOptions | None = None) -> PyTree:
        """Returns `value`."""
        CommunicationOptions().merge(options)  # Checks them.
        del axis
        return value

    def merge_call(
        self, merge_fn: PyTreeFunction, args: Sequence[PyTree] = (), kwargs: Mapping[str, PyTree] | None = None
    ) -> PyTree:
        """Returns `merge_fn(strategy, *args, **kwargs)`."""
        with context.entered(cross_replica=True):
            return called("merge_fn", merge_fn, args, kwargs, default_strategy())

    def __repr__(self) -> str:
        return "DefaultReplicaContext()"


@functools.cache
def default_strategy() -> DefaultStrategy:
    """Returns the one default strategy."""
    return DefaultStrategy()


@functools.cache
def default_replica_context() -> DefaultReplicaContext:
    """Returns the one default replica context."""
    return DefaultReplicaContext()
