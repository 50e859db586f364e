"""Gradient accumulation: one step of training whose batch is worked off in micro-batches, one after the other.

The micro-batch is traced once, with placeholders for the variables that it reads, and repeated by `jax.lax.scan`: the
memory for activations is that of one micro-batch. The variables that it assigns are carried from one to the next. Each
replica adds up its own gradients, and they are combined at the gradient boundary once, when all are done.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import ParamSpec, TypeVar, cast

import jax
import jax.numpy as jnp

import replicax.context as context
from replicax.checks import checked_int
from replicax.contracts.reduce_op import ReduceOp
from replicax.errors import ArgumentError
from replicax.program.function import function
from replicax.program.gradients.autodiff import Differentiated, Differentiation
from replicax.program.gradients.micro_batches import Batch, Group
from replicax.program.gradients.micro_program import MicroProgram, State
from replicax.runtime.precision import adding_dtype
from replicax.typing import PyTree
from replicax.values.tracebacks import entry_point

_P = ParamSpec("_P")
_T = TypeVar("_T")
#: A loss and its gradients; None for variables that it does not depend on.
_Parts = list[jax.Array | None]


def accumulate_gradients(fn: Callable[_P, _T], steps: int) -> Callable[_P, _T]:
    """Makes a function that computes the same gradients of a batch in `steps` micro-batches, in less memory.

    The rows of the batch are dealt out in their order to micro-batches of equal size (the first ones have one row more
    where they do not divide). Activations are kept for one micro-batch at a time. Inside `strategy.run` each replica
    adds up its gradients of all its micro-batches, and the replicas communicate once, as in a step without
    accumulation. Variables that the loss assigns are carried along: batch normalization normalizes each micro-batch and
    its statistics see one after the other, metrics count all rows, and seed generators go on, so that dropout differs
    from one micro-batch to the next.

    With `aggregation="sum"`, the losses of the micro-batches and their gradients are added up: divide by the global
    number of rows, as `rx.compute_average_loss` does by default, here too. With `"mean"` they are averaged, each
    weighted by its rows. Either way the result is that of the whole batch, up to the order of the sums. Gradients are
    added up in float32 where variables have fewer bits.

    Args:
        fn: What `rx.value_and_grad` or `rx.grad` has made.
        steps: Number of micro-batches, at least 1. A replica with fewer rows has one micro-batch for each.

    Returns:
        A function that takes `fn`'s arguments and returns what `fn` returns. Arrays in the arguments have the rows
        first; numbers and scalar arrays are the same for all micro-batches, and a scalar key (`jax.random.key`) is
        split, so that each gets another one. Of the auxiliary values, arrays whose first dimension is as long as the
        micro-batch are put together to all rows, and others are stacked, one entry for each micro-batch.

    Raises:
        ArgumentError: `fn` is something else, or `steps` is no positive integer. When it is called: no argument has
            rows.
        BatchError: When it is called: arguments differ in their rows, or have none.

    Example:
        >>> from replicax import Variable, value_and_grad
        >>> w = Variable(3.0)
        >>> accumulate_gradients(value_and_grad(lambda x: (w * x).sum(), [w]), steps=2)(jnp.arange(4.0))
        (Array(18., dtype=float32), [Array(6., dtype=float32)])
    """
    if not isinstance(fn, Differentiated):
        raise ArgumentError(
            "rx.accumulate_gradients takes what rx.value_and_grad or rx.grad returns, and adds up the gradients with "
            "respect to its variables before replicas communicate: "
            "rx.accumulate_gradients(rx.value_and_grad(loss_fn, variables), steps)(batch). Got "
            f"{type(fn).__name__}: {fn!r:.100}. For gradients of arrays, by jax.value_and_grad, use optax.MultiSteps."
        )
    return cast(Callable[_P, _T], _Accumulated(fn, checked_int("steps", steps, least=1)))


class _Accumulated:
    """The result of `accumulate_gradients`."""

    def __init__(self, fn: Differentiated, steps: int):
        self._fn, self._steps = fn, steps
        self.__name__ = self.__qualname__ = "accumulate_gradients"
        self._compiled = function(self._result)

    @entry_point
    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        is_in_program = context.current().frame is not None
        return (self._result if is_in_program or context.runs_eagerly() else self._compiled)(*args, **kwargs)

    def _result(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        evaluation = self._fn.evaluation()
        evaluation.is_in_parts = True
        batch = Batch.of(args, kwargs, self._steps)
        if not evaluation.variables:  # This builds the model, or raises an error.
            first = [part[0] for part in batch.stacked(batch.groups[0])]
            evaluation(*batch.arguments(first))
        run = _one_by_one if context.runs_eagerly() else _repeated
        parts, aux = run(evaluation, batch, self._fn.op)
        loss, *gradients = parts
        assert loss is not None
        return self._fn.result(evaluation, loss, evaluation.aux.rebuild(aux), evaluation.reduced(gradients))


def _repeated(evaluation: Differentiation, batch: Batch, op: ReduceOp | None) -> tuple[_Parts, list[jax.Array]]:
    """Returns the sums of this replica's losses and gradients, and the arrays of the auxiliary values."""
    values, state = evaluation.values(), State()
    totals: list[_Parts] = []
    aux: list[list[jax.Array]] = []
    dtypes: list[jnp.dtype] = []
    for group in batch.groups:
        program = MicroProgram(evaluation, values, batch, group)
        parts, found = program.repeated(batch.stacked(group), state)
        dtypes = program.dtypes
        totals.append(_weighted(parts, evaluation, op, Fraction(group.rows, batch.rows)))
        aux.append([_joined_rows(each, group) for each in found])
    state.assign()
    return _cast(_joined(totals, evaluation), dtypes), [jnp.concatenate(each) for each in zip(*aux, strict=True)]


def _one_by_one(evaluation: Differentiation, batch: Batch, op: ReduceOp | None) -> tuple[_Parts, list[jax.Array]]:
    """Accumulates operation by operation, for debugging: `print` shows each micro-batch."""
    totals: list[_Parts] = []
    aux: list[list[jax.Array]] = []
    parts: _Parts = []
    for group in batch.groups:
        stacked, part = batch.stacked(group), Fraction(group.rows, batch.rows)
        for i in range(group.count):
            with context.entered(part_of_rows=part):
                args, kwargs = batch.arguments([each[i] for each in stacked])
                loss, found, gradients = evaluation.own(evaluation.values(), args, kwargs)
            parts = [loss, *gradients]
            terms = [None if each is None else each.astype(adding_dtype(each.dtype)) for each in parts]
            totals.append(_weighted(terms, evaluation, op, part))
            aux.append([_joined_rows(each[None], dataclasses.replace(group, count=1)) for each in found])
    dtypes = [jnp.dtype(float) if each is None else each.dtype for each in parts]
    return _cast(_joined(totals, evaluation), dtypes), [jnp.concatenate(each) for each in zip(*aux, strict=True)]


def _weighted(parts: _Parts, evaluation: Differentiation, op: ReduceOp | None, part: Fraction) -> _Parts:
    """Weights sums over micro-batches by their part of the rows, where an average is asked for."""
    if op is not ReduceOp.MEAN:
        return parts
    return [
        each * float(part) if each is not None and join is jnp.add else each
        for each, join in zip(parts, evaluation.joins, strict=True)
    ]


def _joined(totals: Sequence[_Parts], evaluation: Differentiation) -> _Parts:
    first, *others = totals
    for each in others:
        triples = zip(first, each, evaluation.joins, strict=True)
        first = [b if a is None else a if b is None else join(a, b) for a, b, join in triples]
    return first


def _cast(parts: _Parts, dtypes: Sequence[jnp.dtype]) -> _Parts:
    return [None if each is None else each.astype(dtype) for each, dtype in zip(parts, dtypes, strict=True)]


def _joined_rows(stacked: jax.Array, group: Group) -> jax.Array:
    """Returns an auxiliary value of a group's micro-batches: rows one after the other, others stacked as they are."""
    if stacked.shape[1:2] != (group.rows,):
        return stacked
    return stacked.reshape(group.count * group.rows, *stacked.shape[2:])
