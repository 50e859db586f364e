"""Activation checkpointing of functions that read and assign variables: what they compute is computed again."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar, overload

import jax

import replicax.context as context
from replicax.compat.jax_tracing import traced_apart
from replicax.context import StateFrame
from replicax.errors import ProgramError
from replicax.program.call_checks import check_function
from replicax.program.frames import OverrideFrame
from replicax.program.gradients.autodiff import stored_by
from replicax.program.keras.state import keras_scope
from replicax.program.pytrees import Structure, flatten_outputs, is_array
from replicax.typing import PyTree, PyTreeFunction
from replicax.values.tracebacks import entry_point

_P = ParamSpec("_P")
_T = TypeVar("_T")

#: Decides for each operation whether its result is kept, see `jax.checkpoint_policies`.
Policy = Callable[..., bool]


@overload
def remat(fn: Callable[_P, _T], *, policy: Policy | None = None) -> Callable[_P, _T]: ...


@overload
def remat(*, policy: Policy | None = None) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]: ...


def remat(fn: PyTreeFunction | None = None, *, policy: Policy | None = None) -> PyTreeFunction:
    """Makes a function whose intermediate results are not kept for the backward pass, but computed again in it.

    It is `jax.checkpoint` for functions that read and assign variables: layers of Keras with their seed generators,
    batch statistics and metrics, and `rx.Variable`s. The backward pass computes the same numbers again, dropout
    included, and assigns nothing a second time. Outside of a gradient nothing changes.

    Args:
        fn: The function; left out where `remat` is used as a decorator with arguments. Arrays among its arguments are
            traced, and all else is passed as it is.
        policy: Which results are kept all the same, such as `jax.checkpoint_policies.dots_saveable`. By default none.

    Returns:
        The function, with the same arguments and results.

    Raises:
        ArgumentError: `fn` is no function, or `async`, or a generator.
        ProgramError: When it is called: a layer in it adds a loss, which cannot leave it.

    Example:
        >>> import jax.numpy as jnp
        >>> from replicax import Variable, value_and_grad
        >>> w, calls = Variable(2.0), Variable(0)
        >>> @remat
        ... def block(x):
        ...     calls.assign_add(1)
        ...     return jnp.sin(w * x)
        >>> value_and_grad(lambda: block(block(jnp.float32(0.0))), [w])()
        (Array(0., dtype=float32), [Array(0., dtype=float32)])
        >>> calls.numpy()
        array(2, dtype=int32)
    """
    if fn is None:
        return functools.partial(remat, policy=policy)
    check_function("The function", fn)
    function = fn

    @functools.wraps(fn)
    @entry_point
    def computed_again(*args: PyTree, **kwargs: PyTree) -> PyTree:
        if context.runs_eagerly():
            return function(*args, **kwargs)  # Operation by operation nothing is kept or left out.
        return _called(function, policy, args, kwargs)

    return computed_again


def _called(fn: PyTreeFunction, policy: Policy | None, args: PyTree, kwargs: PyTree) -> PyTree:
    leaves, treedef = jax.tree_util.tree_flatten((args, kwargs))
    outer = context.current().frame
    found: list[tuple[OverrideFrame, Structure]] = []

    def pure(arrays: Sequence[jax.Array]) -> tuple[list[jax.Array], list[jax.Array]]:
        frame = _frame_within(outer)
        given = iter(arrays)
        args, kwargs = jax.tree_util.tree_unflatten(
            treedef, [next(given) if is_array(leaf) else leaf for leaf in leaves]
        )
        with context.entered(frame=frame), keras_scope() as scope:
            result = fn(*args, **kwargs)
        check_no_losses([] if scope is None else scope.losses)
        results, structure = flatten_outputs(result)
        found.append((frame, structure))
        return results, frame.new_values()

    with traced_apart():
        results, new_values = jax.checkpoint(pure, policy=policy)(list(filter(is_array, leaves)))
    frame, structure = found[-1]
    if outer is not None:
        outer.saw_new = outer.saw_new or frame.saw_new
    for variable, value in zip(frame.written.values(), new_values, strict=True):
        stored_by(variable, value, outer, id(variable) in frame.written_in_layer)
    return structure.rebuild(results)


def _frame_within(outer: StateFrame | None) -> OverrideFrame:
    """Returns a frame for a part of what `outer` is for, whose assignments come out as results."""
    frame = OverrideFrame(outer, (), ())
    frame.is_of_loss = outer is not None and outer.is_of_loss
    return frame


def check_no_losses(losses: Sequence[jax.Array]) -> None:
    """Checks that layers have added no losses in a function whose results are not kept."""
    if losses:
        raise ProgramError(
            "A layer adds a loss (activity_regularizer, add_loss) in a function that is rematerialized, and it cannot "
            "leave that. Rematerialize the parts around the layer, or return the penalty and add it to the loss."
        )
