"""`jax.grad` and `jax.value_and_grad` in a replica function.

JAX types a weight that all replicas have alike as equal, and sums its gradient over them where it meets a replica's own
rows. Where that cannot be done, each replica differentiates for itself, with respect to a weight that is typed as its
own, and the gradients are summed afterwards, as `rx.value_and_grad` does it always. That is so where JAX refuses the
types (rules and solvers that were traced with one type and get another), where it would sum in a branch that not all
replicas take, and in the loss of `rx.value_and_grad`, whose weights are the replica's own. Nor are gradients of single
rows (`jax.vmap` of `jax.grad`) summed. It does not matter whether `jax.grad` was called in the replica function or long
before: this stands in the place of `vjp`, which what it returned calls. In rules of `jax.custom_vjp` a gradient is a
part of another one, which is summed: in losses it stays the replica's own there.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

import replicax.context as context
from replicax.compat.jax import axes_of_type, vary, varying_axes
from replicax.compat.jax_cotangents import custom_rules
from replicax.compat.jax_errors import is_about_varying
from replicax.compat.jax_gradients import vjp_of_gradients
from replicax.compat.jax_primitives import taken_as_equal_over_axis
from replicax.compat.jax_tracing import is_batched, is_batching
from replicax.compat.replacing import Name
from replicax.program.frames import ReplicaFrame
from replicax.program.pytrees import is_array
from replicax.runtime.mesh import REPLICA_AXIS
from replicax.typing import PyTree, PyTreeFunction


def gradients_of_replicas() -> list[Name]:
    """Returns what stands for JAX's `vjp`, and around rules of `jax.custom_vjp`."""
    around = functools.partial(context.entered, in_custom_rule=True)
    return [*vjp_of_gradients(_in_replicas), Name(jax, "vjp", _in_losses), *custom_rules(around, _of_type)]


def _in_losses(original: PyTreeFunction) -> PyTreeFunction:
    ours = _in_replicas(original)

    @functools.wraps(original)
    def vjp(*args: PyTree, **settings: PyTree) -> PyTree:
        return (ours if context.current().differentiates_apart else original)(*args, **settings)

    return vjp


def _in_replicas(original: PyTreeFunction) -> PyTreeFunction:
    def vjp(fun: PyTreeFunction, *operands: PyTree, **settings: PyTree) -> PyTree:
        current = context.current()
        in_rule = current.differentiates_apart and current.in_custom_rule
        if current.manual_replicas is None or current.frame is None or in_rule:
            return original(fun, *operands, **settings)
        if is_batching() and _is_of_rows(fun, operands):
            return original(fun, *map(_own, operands), **settings)
        frame = cast(ReplicaFrame, current.frame)

        def apart() -> PyTree:
            return _Apart(original, fun, settings, frame)(operands)

        if current.differentiates_apart or frame.notes_plain_gradient():
            return apart()

        def pulled(pullback: PyTreeFunction, cotangents: PyTree) -> PyTree:
            try:
                return pullback(cotangents)
            except (TypeError, ValueError) as error:
                if not is_about_varying(error, REPLICA_AXIS):
                    raise
            return apart()[1](cotangents)

        try:
            value, pullback, *aux = original(fun, *operands, **settings)
        except (TypeError, ValueError) as error:
            if not is_about_varying(error, REPLICA_AXIS):
                raise
            return apart()
        # As JAX's own, it can leave a function under `jax.jit` (`jax.fwd_and_bwd`).
        return value, jax.tree_util.Partial(pulled, pullback), *aux

    return vjp


# Gradients of single rows.


def _is_of_rows(fun: PyTreeFunction, operands: Sequence[PyTree]) -> bool:
    """Returns whether `jax.vmap` takes a gradient of each row: a sum would be that of rows of all replicas."""
    # Auxiliary values may be no arrays.
    whole = jax.make_jaxpr(lambda: list(filter(is_array, jax.tree_util.tree_leaves(fun(*operands)))))()
    return any(is_batched(const) and REPLICA_AXIS in varying_axes(const) for const in whole.consts)


def _own(tree: PyTree) -> PyTree:
    """Returns arrays as a replica's own, except those that `jax.vmap` maps."""
    return jax.tree_util.tree_map(
        lambda leaf: vary(jnp.asarray(leaf), REPLICA_AXIS) if _is_float(leaf) and not is_batched(leaf) else leaf, tree
    )


def _is_float(leaf: PyTree) -> bool:
    return isinstance(leaf, (jax.Array, float)) and jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)


# Each replica for itself.


class _Output(NamedTuple):
    """The known facts of an array that a differentiated function returns."""

    varies: bool  # by its type
    is_equal: bool  # in fact, on all replicas
    is_scalar: bool


class _Apart:
    """One evaluation in which each replica differentiates for itself."""

    def __init__(self, original: PyTreeFunction, fun: PyTreeFunction, settings: dict[str, PyTree], frame: ReplicaFrame):
        self._original, self._fun, self._settings, self._frame = original, fun, settings, frame
        self._is_inner = context.current().differentiates_apart
        self._outputs: list[_Output] = []
        self._summed: PyTree = None  # of the operands, whether they are equal: their gradients are sums then

    def __call__(self, operands: Sequence[PyTree]) -> PyTree:
        leaves, treedef = jax.tree_util.tree_flatten(tuple(operands))
        pairs = list(map(self._typed, leaves))
        own = jax.tree_util.tree_unflatten(treedef, [leaf for leaf, _ in pairs])
        self._summed = jax.tree_util.tree_unflatten(treedef, [flag for _, flag in pairs])
        noted = functools.wraps(self._fun)(lambda *operands: self._noted(operands))
        with context.entered(differentiates_apart=True, in_custom_rule=False):
            value, pullback, *aux = self._original(noted, *own, **self._settings)
        pulled = jax.tree_util.Partial(self._pulled, pullback, jax.tree_util.tree_leaves(value), own)
        if not self._is_inner:
            leaves, treedef = jax.tree_util.tree_flatten(value)
            typed = [
                taken_as_equal_over_axis(leaf, REPLICA_AXIS) if output.varies and output.is_equal else leaf
                for leaf, output in zip(leaves, self._outputs, strict=True)
            ]
            value, aux = jax.tree_util.tree_unflatten(treedef, typed), jax.tree_util.tree_map(self._as_it_is, aux)
        return value, pulled, *aux

    def _typed(self, leaf: PyTree) -> tuple[PyTree, bool]:
        """Returns an operand as a replica's own, and whether it is equal on all of them."""
        if not _is_float(leaf):
            return leaf, False
        if REPLICA_AXIS not in varying_axes(leaf):
            return vary(jnp.asarray(leaf), REPLICA_AXIS), True
        if not self._is_inner:
            return leaf, False
        # In a loss that is differentiated all that is made of weights is typed as the replica's own.
        leaf, why = self._frame.decide(leaf, refused_if_equal=False)
        return leaf, why is None

    def _noted(self, operands: Sequence[PyTree]) -> PyTree:
        result = self._fun(*operands)
        has_aux = self._settings.get("has_aux", False)
        leaves, treedef = jax.tree_util.tree_flatten(result[0] if has_aux else result)
        pairs = list(map(self._output, leaves))
        self._outputs = [output for _, output in pairs]
        value = jax.tree_util.tree_unflatten(treedef, [leaf for leaf, _ in pairs])
        return (value, *result[1:]) if has_aux else value

    def _output(self, leaf: PyTree) -> tuple[PyTree, _Output]:
        varies = isinstance(leaf, jax.Array) and REPLICA_AXIS in varying_axes(leaf)
        is_equal = not varies
        if varies:
            leaf, why = self._frame.decide(leaf, refused_if_equal=True)
            is_equal = why is None
        return leaf, _Output(varies, is_equal, jnp.ndim(leaf) == 0)

    def _pulled(
        self, pullback: PyTreeFunction, values: Sequence[PyTree], operands: Sequence[PyTree], cotangents: PyTree
    ) -> PyTree:
        """Returns the gradients, of which those are summed that are to be."""
        leaves, treedef = jax.tree_util.tree_flatten(cotangents)
        given = list(zip(leaves, self._outputs, strict=True))
        typed = [_of_output(leaf, output, value) for (leaf, output), value in zip(given, values, strict=True)]
        own = jax.tree_util.tree_unflatten(treedef, typed)
        with context.entered(differentiates_apart=True, in_custom_rule=False):
            gradients = pullback(own)
        # A Jacobian of what each replica has of its own, such as rows, is its own too.
        is_own = [is_batched(leaf) and not (output.is_equal or output.is_scalar) for leaf, output in given]
        if self._is_inner and any(is_own):
            return gradients
        return jax.tree_util.tree_map(self._gradient, gradients, tuple(operands), self._summed)

    def _gradient(self, gradient: PyTree, operand: PyTree, is_summed: bool) -> PyTree:
        if self._is_inner and _is_float(operand):
            gradient = _with_mark(gradient, operand)
        return jax.lax.psum(gradient, REPLICA_AXIS) if is_summed else gradient

    def _as_it_is(self, leaf: PyTree) -> PyTree:
        if not isinstance(leaf, jax.core.Tracer) or REPLICA_AXIS not in varying_axes(leaf):
            return leaf
        leaf, why = self._frame.decide(leaf, refused_if_equal=True)
        return taken_as_equal_over_axis(leaf, REPLICA_AXIS) if why is None else leaf


def _of_output(cotangent: PyTree, output: _Output, value: PyTree) -> PyTree:
    """Returns a cotangent as one of its output's type; `value` is the output."""
    if not (output.varies and _is_float(cotangent)):
        return cotangent
    # Parts of a number that is one for all add up; the gradient of one that each has computed is whole.
    part = cotangent / (context.current().manual_replicas or 1) if output.is_equal else cotangent
    return _with_mark(vary(part, REPLICA_AXIS), value)


def _with_mark(derivative: jax.Array, decided: jax.Array) -> jax.Array:
    """Returns a derivative, in such a way that the mark of the decision that it follows from stays in the program."""
    # JAX drops what nothing uses: in `jax.jit(jax.grad(f))` the value, and the operand of a linear function. XLA sees
    # that the choice is none.
    return jax.lax.select_n(np.False_, derivative, jax.lax.stop_gradient(decided))


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
