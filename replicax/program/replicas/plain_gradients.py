"""`jax.grad` and `jax.value_and_grad` in a replica function.

JAX types a weight that all replicas have alike as equal, and sums its gradient over them where it meets a replica's own
rows. Where that cannot be done, each replica differentiates for itself, with respect to a weight that is typed as its
own, and the gradients are summed afterwards, as `rx.value_and_grad` does it always. That is so where JAX refuses the
types (rules and solvers that were traced with one type and get another), and where it would sum in a branch that not
all replicas take. Nor are gradients of single rows (`jax.vmap` of `jax.grad`) summed, wherever they were made.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp

import replicax.context as context
from replicax.compat.jax import axes_of_type, vary, varying_axes
from replicax.compat.jax_cotangents import retyped_cotangents
from replicax.compat.jax_errors import is_about_varying
from replicax.compat.jax_gradients import retyped_operands
from replicax.compat.jax_primitives import taken_as_equal_over_axis
from replicax.compat.jax_tracing import is_batched, is_batching
from replicax.compat.replacing import Name
from replicax.program.frames import ReplicaFrame
from replicax.program.pytrees import is_array
from replicax.runtime.mesh import REPLICA_AXIS
from replicax.typing import PyTree, PyTreeFunction


def gradients_of_replicas() -> list[Name]:
    """Returns what stands for `jax.grad`, `jax.value_and_grad` and what rules of `jax.custom_vjp` return."""
    gradients = [Name(jax, name, _in_replicas) for name in ("grad", "value_and_grad")]
    return [*gradients, *retyped_operands(_of_rows), *retyped_cotangents(_of_type)]


def _in_replicas(original: PyTreeFunction) -> PyTreeFunction:
    @functools.wraps(original)
    def make(fun: PyTreeFunction, argnums: int | Sequence[int] = 0, *args: PyTree, **kwargs: PyTree) -> PyTreeFunction:
        differentiated = original(fun, argnums, *args, **kwargs)

        @functools.wraps(differentiated)
        def call(*operands: PyTree, **named: PyTree) -> PyTree:
            current = context.current()
            if current.manual_replicas is None or current.frame is None:
                return differentiated(*operands, **named)
            frame = cast(ReplicaFrame, current.frame)
            if is_batching() and _is_of_rows(fun, operands, named):
                numbers = {number % len(operands) for number in _numbers(argnums)}
                return differentiated(
                    *[_own(each) if i in numbers else each for i, each in enumerate(operands)], **named
                )
            if not current.differentiates_apart and not frame.notes_plain_gradient():
                try:
                    return differentiated(*operands, **named)
                except (TypeError, ValueError) as error:
                    if not is_about_varying(error, REPLICA_AXIS):
                        raise
            has_aux = bool(args[0] if args else kwargs.get("has_aux", False))
            apart = _Apart(original, fun, argnums, has_aux, frame)
            return apart(operands, named, args, kwargs)

        return call

    return make


def _numbers(argnums: int | Sequence[int]) -> Iterable[int]:
    return (argnums,) if isinstance(argnums, int) else argnums


# Gradients of single rows.


def _is_of_rows(fun: PyTreeFunction, operands: Sequence[PyTree], named: dict[str, PyTree]) -> bool:
    """Returns whether `jax.vmap` takes a gradient of each row: a sum would be that of rows of all replicas."""
    # Auxiliary values may be no arrays.
    whole = jax.make_jaxpr(lambda: list(filter(is_array, jax.tree_util.tree_leaves(fun(*operands, **named)))))()
    return any(is_batched(const) and REPLICA_AXIS in varying_axes(const) for const in whole.consts)


def _of_rows(fun: PyTreeFunction, operands: Sequence[PyTree]) -> Sequence[PyTree]:
    """Returns the operands of a gradient, as a replica's own where it is one of each row."""
    if context.current().manual_replicas is None or not (is_batching() and _is_of_rows(fun, operands, {})):
        return operands
    return list(map(_own, operands))


def _own(tree: PyTree) -> PyTree:
    """Returns arrays as a replica's own, except those that `jax.vmap` maps."""
    return jax.tree_util.tree_map(
        lambda leaf: vary(jnp.asarray(leaf), REPLICA_AXIS) if _is_float(leaf) and not is_batched(leaf) else leaf, tree
    )


def _is_float(leaf: PyTree) -> bool:
    return isinstance(leaf, (jax.Array, float)) and jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)


# Each replica for itself.


class _Apart:
    """One evaluation in which each replica differentiates for itself."""

    def __init__(
        self,
        original: PyTreeFunction,
        fun: PyTreeFunction,
        argnums: int | Sequence[int],
        has_aux: bool,
        frame: ReplicaFrame,
    ):
        self._original, self._fun, self._argnums, self._has_aux = original, fun, argnums, has_aux
        self._frame, self._is_inner = frame, context.current().differentiates_apart
        self._loss_is_equal = False

    def __call__(
        self, operands: Sequence[PyTree], named: dict[str, PyTree], args: Sequence[PyTree], kwargs: dict[str, PyTree]
    ) -> PyTree:
        own, summed = list(operands), {}
        for number in {number % len(own) for number in _numbers(self._argnums)}:
            leaves, treedef = jax.tree_util.tree_flatten(own[number])
            pairs = list(map(self._typed, leaves))
            own[number] = jax.tree_util.tree_unflatten(treedef, [leaf for leaf, _ in pairs])
            summed[number] = jax.tree_util.tree_unflatten(treedef, [flag for _, flag in pairs])
        loss = functools.wraps(self._fun)(lambda *operands, **named: self._noted(operands, named))
        with context.entered(differentiates_apart=True):
            result = self._original(loss, self._argnums, *args, **kwargs)(*own, **named)
        one = isinstance(self._argnums, int)
        flags = [summed[number % len(own)] for number in _numbers(self._argnums)]
        return self._summed(result, flags[0] if one else tuple(flags))

    def _typed(self, leaf: PyTree) -> tuple[PyTree, bool]:
        """Returns an operand as a replica's own, and whether it is equal on all of them: its gradient is a sum then."""
        if not _is_float(leaf):
            return leaf, False
        if REPLICA_AXIS not in varying_axes(leaf):
            return vary(jnp.asarray(leaf), REPLICA_AXIS), True
        if not self._is_inner:
            return leaf, False
        # In a loss that is differentiated all that is made of weights is typed as the replica's own.
        leaf, why = self._frame.decide(leaf, refused_if_equal=False)
        return leaf, why is None

    def _noted(self, operands: Sequence[PyTree], named: dict[str, PyTree]) -> PyTree:
        result = self._fun(*operands, **named)
        loss = result[0] if self._has_aux else result
        if isinstance(loss, jax.Array) and REPLICA_AXIS in varying_axes(loss):
            loss, why = self._frame.decide(loss, refused_if_equal=True)
            self._loss_is_equal = why is None
        return (loss, *result[1:]) if self._has_aux else loss

    def _summed(self, result: PyTree, flags: PyTree) -> PyTree:
        """Returns the result with the gradients that are to be summed, and with what is equal typed so."""
        gives_value = self._original.__name__ == "value_and_grad"
        rest, gradients = result if gives_value else (None, result)
        if not gives_value and self._has_aux:
            gradients, rest = result
        # Parts of a loss that is one number for all add up; the gradient of one that each has computed is whole.
        combine: Any = jax.lax.pmean if self._loss_is_equal else jax.lax.psum
        gradients = jax.tree_util.tree_map(lambda g, flag: combine(g, REPLICA_AXIS) if flag else g, gradients, flags)
        if not self._is_inner:
            rest = jax.tree_util.tree_map(self._as_it_is, rest)
        if gives_value:
            return rest, gradients
        return (gradients, rest) if self._has_aux else gradients

    def _as_it_is(self, leaf: PyTree) -> PyTree:
        if not isinstance(leaf, jax.core.Tracer) or REPLICA_AXIS not in varying_axes(leaf):
            return leaf
        leaf, why = self._frame.decide(leaf, refused_if_equal=True)
        return taken_as_equal_over_axis(leaf, REPLICA_AXIS) if why is None else leaf


def _of_type(cotangent: jax.Array, kind: jax.core.AbstractValue) -> jax.Array:
    """Returns a cotangent as one of its operand's type."""
    current = context.current()
    if current.manual_replicas is None:
        return cotangent
    found, wanted = REPLICA_AXIS in varying_axes(cotangent), REPLICA_AXIS in axes_of_type(kind)
    if found and not wanted:
        summed: jax.Array = jax.lax.psum(cotangent, REPLICA_AXIS)
        return summed
    # Where each replica differentiates for itself a constant for a weight would be counted once per replica.
    return vary(cotangent, REPLICA_AXIS) if wanted and not current.differentiates_apart else cotangent
