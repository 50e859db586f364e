"""Asking for, and setting, what is current."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, cast

import replicax.context as context
from replicax.errors import ArgumentError, ContextError
from replicax.keras.strategy_scope import keras_entered
from replicax.strategies.base import Strategy
from replicax.strategies.no_strategy import default_replica_context, default_strategy
from replicax.strategies.replica_context import ReplicaContext


def get_strategy() -> Strategy:
    """Returns the current strategy; the default strategy outside every scope.

    Example:
        >>> get_strategy()
        DefaultStrategy()
    """
    strategy = context.current().strategy
    return default_strategy() if strategy is None else cast(Strategy, strategy)


def has_strategy() -> bool:
    """Returns whether a strategy other than the default one is current.

    Example:
        >>> with rx.MirroredStrategy().scope():
        ...     rx.has_strategy()
        True
    """
    return context.current().strategy is not None


def in_cross_replica_context() -> bool:
    """Returns whether the code runs for all replicas together.

    True inside `strategy.scope()`, in the function of a `merge_call` and in that of `strategy.update`. False inside
    `strategy.run`, and also outside every scope: there the default strategy's only replica runs.

    Example:
        >>> strategy = rx.MirroredStrategy()
        >>> with strategy.scope():
        ...     rx.in_cross_replica_context()
        True
    """
    current = context.current()
    return current.replica is None and (current.strategy is not None or current.cross_replica)


def get_replica_context() -> ReplicaContext | Any:  # with None as a type, each use would need a check
    """Returns the running replica's context; None in cross-replica context.

    Outside every scope it is the default context, replica 0 of 1.

    Example:
        >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> strategy.run(lambda: rx.get_replica_context().num_replicas_in_sync)
        2
        >>> with strategy.scope():
        ...     rx.get_replica_context() is None
        True
    """
    current = context.current()
    if current.replica is not None:
        return current.replica
    return None if in_cross_replica_context() else default_replica_context()


def set_strategy(strategy: Strategy | None) -> None:
    """Makes a strategy current without a `with` block, until the next call; None makes none current.

    Raises:
        ContextError: Called inside a `with strategy.scope()` block or inside `run`.
        ArgumentError: `strategy` is none.

    Example:
        >>> strategy = rx.MirroredStrategy()
        >>> rx.set_strategy(strategy)
        >>> rx.get_strategy() is strategy
        True
        >>> rx.set_strategy(None)
    """
    if strategy is not None and not isinstance(strategy, Strategy):
        raise ArgumentError(
            f"rx.set_strategy takes a strategy (rx.MirroredStrategy(), ...) or None, got {strategy!r:.100}."
        )
    current = context.current()
    if current.replica is not None or (current.strategy is not None and current.opened_by_set_strategy is None):
        raise ContextError(f"rx.set_strategy was called inside the scope of {current.strategy!r}.")
    if current.opened_by_set_strategy is not None:
        current.opened_by_set_strategy.close()
    if strategy is None or strategy is default_strategy():
        context.replace(context.Context())
        return
    opened = contextlib.ExitStack()
    opened.enter_context(keras_entered(strategy))
    context.replace(dataclasses.replace(current, strategy=strategy, opened_by_set_strategy=opened))
