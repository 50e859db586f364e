"""The scope in which an estimator makes and runs a model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import replicax.context as context
from replicax.errors import ContextError
from replicax.strategies import Strategy
from replicax.strategies.no_strategy import default_strategy


@contextlib.contextmanager
def own_scope(strategy: Strategy) -> Iterator[None]:
    """Opens a strategy's scope, whatever scope is open: a hook of a training may evaluate under another strategy."""
    current = context.current()
    if current.frame is not None or current.replica is not None:
        raise ContextError("An estimator was called inside a step. Call it outside, between the steps.")
    with (
        context.entered(strategy=None, opened_by_set_strategy=None, scope=None, named_variables=None),
        strategy.scope(),
    ):
        yield


def without_workers(strategy: Strategy) -> Strategy:
    """Returns the strategy under which a model is evaluated, or predicts."""
    # Of asynchronous training only the values are needed, and this process has them.
    return default_strategy() if strategy.is_asynchronous else strategy
