"""`rx.testing.check_strategy` passes on our strategies, and finds what a user's strategy does wrong."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ArgumentError, StrategyCheckError
from tests.contract.strategies import ALL

OURS = {name: make for name, make in ALL.items() if name != "default"}


@pytest.mark.slow
@pytest.mark.daily(2)
@pytest.mark.parametrize("name", OURS)
@pytest.mark.filterwarnings("ignore:The layout patterns")
def test_our_strategies_keep_the_contract(name: str):
    rules = rx.testing.check_strategy(OURS[name])
    assert len(rules) == len(set(rules)) == 20


def in_context(**methods: Any) -> type[rx.Strategy]:
    """Returns a strategy whose replica context has these methods."""
    own = type("Own", (rx.ReplicaContext,), methods)
    return type(
        "Wrong", (rx.MirroredStrategy,), {"replica_context": lambda self, n, rows=frozenset(): own(self, n, rows)}
    )


def mean_for_sum(self: Any, op: Any, gradients: Any, variables: Any) -> Any:
    return rx.ReplicaContext.reduce_gradients(self, rx.ReduceOp.MEAN, gradients, variables)


def first_only(self: Any, op: Any, gradients: Any, variables: Any) -> Any:
    """Sums the first gradient, and leaves the others to each replica."""
    first, *others = gradients
    return [*rx.ReplicaContext.reduce_gradients(self, op, [first], variables[:1]), *others]


def half_precision(self: Any, op: Any, gradients: Any, variables: Any) -> Any:
    narrow = [None if each is None else each.astype(jnp.bfloat16).astype(each.dtype) for each in gradients]
    return rx.ReplicaContext.reduce_gradients(self, op, narrow, variables)


class LastBatchDropped(rx.MirroredStrategy):
    def distribute_dataset(self, dataset, options=None, *, batch_size=None):
        whole = [batch for batch in dataset if len(jax.tree.leaves(batch)[0]) % self.num_replicas_in_sync == 0]
        return super().distribute_dataset(whole, options, batch_size=batch_size)


class RowsReversed(rx.MirroredStrategy):
    def distribute_dataset(self, dataset, options=None, *, batch_size=None):
        turned = [jax.tree.map(lambda leaf: leaf[::-1], batch) for batch in dataset]
        return super().distribute_dataset(turned, options, batch_size=batch_size)


class MeanOfMeans(rx.MirroredStrategy):
    def reduce(self, op, value, axis=None):
        if axis is None or rx.ReduceOp.of(op) is rx.ReduceOp.SUM:
            return super().reduce(op, value, axis)
        parts = self.local_results(value)
        return sum(jnp.mean(part, axis) for part in parts) / self.num_replicas_in_sync


class GatheredBackwards(rx.MirroredStrategy):
    def gather(self, value, axis=0):
        return jnp.flip(super().gather(value, axis), axis)


class OneResult(rx.MirroredStrategy):
    def local_results(self, value):
        return super().local_results(value)[:1]


class NarrowState(rx.MirroredStrategy):
    def replicate(self, tree):
        return super().replicate(jax.tree.map(lambda leaf: np.minimum(leaf, 1), tree))


class NoScope(rx.MirroredStrategy):
    @contextlib.contextmanager
    def scope(self):
        yield self


class UpdatedTwice(rx.MirroredStrategy):
    def _update(self, variable, fn, args, kwargs):
        super()._update(variable, fn, args, kwargs)
        return super()._update(variable, fn, args, kwargs)


class ErrorSwallowed(rx.MirroredStrategy):
    def _run(self, fn, args, kwargs, donate):
        with contextlib.suppress(Exception):
            return super()._run(fn, args, kwargs, donate)


class SameValue(rx.MirroredStrategy):
    def distribute_values_from_function(self, value_fn):
        return super().distribute_values_from_function(lambda context: value_fn(rx.ValueContext(0, 2)))


def transposed(self: Any, op: Any, gradients: Any, variables: Any) -> Any:
    summed = rx.ReplicaContext.reduce_gradients(self, op, gradients, variables)
    return [each if each is None or each.ndim < 2 else each.T.reshape(each.shape) for each in summed]


class FitTwice(rx.MirroredStrategy):
    @contextlib.contextmanager
    def around_loop(self, model, name, given):
        given.arguments["epochs"] = 2 * given.arguments["epochs"]
        yield


WRONG = {
    "transposed": (in_context(reduce_gradients=transposed), "gradients of `rx.grad`"),
    "fit twice": (FitTwice, "`Model.fit` is that of Keras"),
    "mean for sum": (in_context(reduce_gradients=mean_for_sum), "gradients of `rx.grad`"),
    "first only": (in_context(reduce_gradients=first_only), "training on even batches"),
    "half precision": (in_context(reduce_gradients=half_precision), "gradients of `rx.grad`"),
    "last batch dropped": (LastBatchDropped, "each row of a batch"),
    "rows reversed": (RowsReversed, "each row of a batch"),
    "mean of means": (MeanOfMeans, "`reduce` is exact"),
    "gathered backwards": (GatheredBackwards, "replicas are numbered"),
    "one result": (OneResult, "a result that is equal"),
    "narrow state": (NarrowState, "state that goes through `run`"),
    "no scope": (NoScope, "it is current in its scope"),
    "updated twice": (UpdatedTwice, "`update` changes all copies"),
    "error swallowed": (ErrorSwallowed, "a step that raises an error"),
    "same value": (SameValue, "`distribute_values_from_function`"),
}


@pytest.mark.slow
@pytest.mark.daily(2)
@pytest.mark.parametrize("name", WRONG)
def test_a_strategy_that_breaks_a_rule_is_found(name: str):
    strategy, rule = WRONG[name]
    with pytest.raises(StrategyCheckError) as found:
        rx.testing.check_strategy(lambda: strategy(["cpu:0", "cpu:1"]))
    assert any(each.startswith(rule) for each in found.value.broken), found.value


def test_something_else_than_a_factory_of_strategies_is_refused():
    for wrong in (rx.MirroredStrategy(["cpu:0"]), lambda: 3):
        with pytest.raises(ArgumentError, match="factory"):
            rx.testing.check_strategy(wrong)
    for rtol in (float("nan"), -1, "x", True, float("inf")):
        with pytest.raises(ArgumentError, match="`rtol` is a number between 0 and 1"):
            rx.testing.check_strategy(rx.MirroredStrategy, rtol=rtol)
