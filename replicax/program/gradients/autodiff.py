"""The gradient boundary: derivatives with respect to variables.

All differentiated variables pass through one `jax.custom_vjp`. Going backward it sees their gradients together, and
those of variables that the loss does not depend on as symbolic zeros, so that they can be told from zero gradients.
Inside `strategy.run` each replica differentiates with respect to a value of its own; then the gradients of all
variables are made equal at once, in buckets, by the strategy's cross-device ops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import ParamSpec, TypeVar, cast

import jax
import jax.numpy as jnp

import replicax.context as context
from replicax.compat.jax import vary, varying_axes
from replicax.compat.jax_tracing import traced_apart
from replicax.context import ReplicaStateFrame, StateFrame
from replicax.contracts.reduce_op import ReduceOp
from replicax.contracts.strategy import or_null
from replicax.contracts.variable_access import (
    VariableLike,
    array_of,
    dtype_of,
    is_per_replica_variable,
    is_replaced_by_gradient,
    is_variable,
    layout_of,
    name_of,
    optimizer_check_of,
    store,
)
from replicax.errors import ArgumentError, ProgramError, ReplicaDivergenceError
from replicax.program.call_checks import check_function, check_result
from replicax.program.flax.parameters import with_parameters, zeros_for_flax
from replicax.program.flax.variables import flax_state
from replicax.program.frames import OverrideFrame, VariablesCreatedError
from replicax.program.ir.jaxprs import SUMMED_LOSS, marked_as_gradient
from replicax.program.keras.state import keras_scope
from replicax.program.pytrees import flatten_outputs
from replicax.program.row_updates import IN_PARTS, OWN
from replicax.runtime.mesh import REPLICA_AXIS
from replicax.typing import PyTree, PyTreeFunction
from replicax.values.equality import difference
from replicax.values.tracebacks import entry_point

_P = ParamSpec("_P")
_T = TypeVar("_T")


def value_and_grad(
    loss_fn: Callable[_P, _T],
    variables: PyTree,
    has_aux: bool = False,
    aggregation: ReduceOp | str | None = "sum",
) -> Callable[_P, tuple[_T, PyTree]]:
    """Makes a function that computes a loss and its gradients with respect to variables.

    Inside `strategy.run` the gradients come back reduced over replicas, ready for any optimizer. Outside of it they
    are those of the loss itself and `aggregation` has no effect.

    Args:
        loss_fn: Returns a scalar float loss; with `has_aux`, a pair `(loss, aux)`. It may assign variables.
        variables: Pytree of the variables to differentiate with respect to (`rx.Variable` or Keras), float or complex.
            A module of flax's `nnx` stands for its `nnx.Param`s; its gradients are an `nnx.State`.
        has_aux: Whether `loss_fn` returns auxiliary values beside the loss.
        aggregation: `"sum"` adds the replicas' gradients: right for losses divided by the *global* batch size
            (`rx.compute_average_loss`). `"mean"` averages them: right for losses that are a mean over the replica's
            own rows. A loss that is already equal on all replicas (reduced inside `loss_fn`) counts once with either.
            None leaves each replica its own gradients.

    Returns:
        A function that takes `loss_fn`'s arguments and returns `(loss, gradients)`, or `((loss, aux), gradients)`.
        The gradients have the structure of `variables`, with each variable's shape and dtype, and None for
        variables that the loss does not depend on. The loss is this replica's own.

    Raises:
        ArgumentError: `variables` holds something else, or is empty; `loss_fn` is `async` or a generator; or what it
            returns is not a scalar float, or with `has_aux` no pair.

    Example:
        >>> w = Variable(3.0)
        >>> value_and_grad(lambda: w * w, [w])()
        (Array(9., dtype=float32), [Array(6., dtype=float32)])
    """
    return Differentiated(loss_fn, variables, has_aux, aggregation, "value_and_grad")


def grad(
    loss_fn: Callable[_P, PyTree],
    variables: PyTree,
    has_aux: bool = False,
    aggregation: ReduceOp | str | None = "sum",
) -> Callable[_P, PyTree]:
    """Makes a function that computes gradients only; with `has_aux`, `(gradients, aux)`. See `value_and_grad`.

    Example:
        >>> w = Variable(3.0)
        >>> grad(lambda: w * w, w)()
        Array(6., dtype=float32)
    """
    return Differentiated(loss_fn, variables, has_aux, aggregation, "grad")


_KEPT_TRACE = (
    "A loss that is differentiated outside of rx.function and strategy.run met a value of an earlier one. JAX keeps "
    "what it has traced of a function under jax.jit or jax.checkpoint, or of the body of jax.lax.scan, with the value "
    "of each variable that it read. Call the step through rx.function, which traces such functions anew, or pass the "
    "variable's value to the function as an argument."
)

#: JAX's own: in replicas `jax.vjp` becomes another (`program/replicas/plain_gradients.py`).
_vjp = jax.vjp


class Differentiated:
    """The result of `value_and_grad` and `grad`: a function, which refuses to be used as if it were its own result."""

    def __init__(
        self,
        loss_fn: PyTreeFunction,
        variables: PyTree,
        has_aux: bool,
        aggregation: ReduceOp | str | None,
        maker: str,  # which of the two functions has made it
    ):
        check_function("The loss function", loss_fn)
        self._leaves, self._treedef = jax.tree_util.tree_flatten(with_parameters(variables))
        _check_variables(self._leaves)
        self._loss_fn, self._has_aux, self._maker = loss_fn, has_aux, maker
        self.op = None if aggregation is None else ReduceOp.of(aggregation)  # None: each replica keeps its gradients
        self.__name__ = self.__qualname__ = maker  # of programs that are made of it

    def evaluation(self) -> Differentiation:
        """Returns a new evaluation of the loss and its gradients."""
        unique = {id(variable): variable for variable in self._leaves}
        return Differentiation(self._loss_fn, list(unique.values()), self._has_aux, self.op)

    def result(
        self, evaluation: Differentiation, loss: jax.Array, aux: PyTree, found: list[jax.Array | None]
    ) -> PyTree:
        """Returns what the caller gets: the loss unless only gradients are asked for, auxiliary values, gradients."""
        by_id = {id(variable): gradient for variable, gradient in zip(evaluation.variables, found, strict=True)}
        gradients = jax.tree_util.tree_unflatten(
            self._treedef, [zeros_for_flax(variable, by_id[id(variable)]) for variable in self._leaves]
        )
        if self._maker == "grad":
            return (gradients, aux) if self._has_aux else gradients
        return ((loss, aux) if self._has_aux else loss), gradients

    @entry_point
    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        evaluation = self.evaluation()
        loss, aux, gradients = evaluation(args, kwargs)
        return self.result(evaluation, loss, aux, gradients)

    def __iter__(self) -> Iterator[PyTree]:
        raise self._is_a_function("unpacked")

    def __getitem__(self, index: object) -> PyTree:
        raise self._is_a_function("indexed")

    def __len__(self) -> int:
        raise self._is_a_function("asked for its length")

    def __bool__(self) -> bool:
        return True

    def _is_a_function(self, what: str) -> ArgumentError:
        results = "gradients" if self._maker == "grad" else "loss, gradients"
        return ArgumentError(
            f"rx.{self._maker} returns a function, which was {what}. Call it with the arguments of the loss function: "
            f"{results} = rx.{self._maker}(loss_fn, variables)()."
        )


class Differentiation:
    """One evaluation of a loss and its gradients."""

    is_in_parts = False  # whether the gradients are those of a part of the batch, to be added up

    def __init__(self, loss_fn: PyTreeFunction, variables: list[VariableLike], has_aux: bool, op: ReduceOp | None):
        self._loss_fn, self.variables, self._has_aux, self._op = loss_fn, variables, has_aux, op
        #: How the loss and the gradients of two parts of the rows make those of both.
        self.joins = [jnp.add, *(jnp.maximum if is_replaced_by_gradient(each) else jnp.add for each in variables)]
        self._replica = context.current().replica if context.current().manual_replicas is not None else None
        self._loss_is_equal = False
        self._unconnected = [True] * len(variables)
        self._written: list[VariableLike] = []
        self._saw_new = False

    def __call__(self, args: PyTree, kwargs: PyTree) -> tuple[jax.Array, PyTree, list[jax.Array | None]]:
        """Returns the loss, the auxiliary values and the gradients, reduced over replicas."""
        if not self.variables:
            self._build_only(args, kwargs)
        loss, aux, gradients = self.own(self.values(), args, kwargs)
        return loss, self.aux.rebuild(aux), self.reduced(gradients)

    def values(self) -> list[jax.Array]:
        """Returns the values of the variables, as this replica differentiates with respect to them."""
        outer = context.current().frame
        values = [array_of(variable) if outer is None else outer.read(variable) for variable in self.variables]
        # The rows of a strategy's only replica do not vary, and a rule of `jax.custom_vjp` wants both alike.
        if self._replica is not None and or_null(context.current().strategy).num_replicas_in_sync > 1:
            values = [vary(value, REPLICA_AXIS) for value in values]
        return values

    def own(
        self, values: list[jax.Array], args: PyTree, kwargs: PyTree
    ) -> tuple[jax.Array, list[jax.Array], list[jax.Array | None]]:
        """Assigns what the loss assigns; returns this replica's loss, arrays of its auxiliary values, and gradients."""
        outer = context.current().frame
        with keras_scope():
            if outer is None:
                around = OverrideFrame(None, (), ())
                around.is_of_loss = False
                with context.entered(frame=around):
                    try:
                        loss, (aux, new_values), gradients = self._evaluated(values, args, kwargs)
                    except jax.errors.UnexpectedTracerError as error:
                        # Tracing anew, as programs do it, would compile each operation again in each step.
                        raise ProgramError(_KEPT_TRACE) from error
                around.update_rows(1.0, self._refused(), self._is_applied())
            else:
                apart = self._replica is not None
                with traced_apart(), context.entered(differentiates_apart=apart, in_custom_rule=False):
                    loss, (aux, new_values), gradients = self._evaluated(values, args, kwargs)
        if self._saw_new and outer is not None:
            raise VariablesCreatedError
        for variable, value in zip(self._written, new_values, strict=True):
            stored_by(variable, value if self._replica is None else made_equal(variable, value, outer), outer)
        if outer is not None and not outer.is_of_loss:
            outer.update_rows(self._factor(), self._refused(), self._is_applied())
        if self._replica is not None and self._op is ReduceOp.SUM and not self._loss_is_equal:
            loss = SUMMED_LOSS(loss)
        # A gradient is None where the loss does not depend on the variable.
        return loss, aux, [None if cut else g for g, cut in zip(gradients, self._unconnected, strict=True)]

    def _evaluated(
        self, values: list[jax.Array], args: PyTree, kwargs: PyTree
    ) -> tuple[jax.Array, tuple[list[jax.Array], list[jax.Array]], list[jax.Array]]:
        loss, pullback, made = _vjp(lambda values: self._loss(values, args, kwargs), values, has_aux=True)
        [gradients] = pullback(jnp.ones_like(loss))
        return loss, made, gradients

    def _factor(self) -> float:
        """Returns the factor by which the sum of the replicas' gradients is multiplied."""
        if self._replica is None or self._op is not ReduceOp.MEAN or self._loss_is_equal:
            return 1.0
        return 1.0 / (context.current().manual_replicas or 1)

    def _is_applied(self) -> bool:
        """Returns whether there are gradients for an optimizer, beside those with which rows are updated."""
        return any(optimizer_check_of(variable) is None for variable in self.variables)

    def _refused(self) -> str | None:
        """Returns why rows cannot be updated with the gradients, and what to do; None if they can."""
        if self.is_in_parts:
            return IN_PARTS
        is_own = self._replica is not None and self._op is None and (context.current().manual_replicas or 1) > 1
        return OWN if is_own else None

    def reduced(self, found: list[jax.Array | None]) -> list[jax.Array | None]:
        """Combines the replicas' gradients; None stays None."""
        if self._replica is not None and self._op is not None:
            # The parts of a loss that is one number for all replicas add up to its gradient: nothing to average.
            op = ReduceOp.SUM if self._loss_is_equal else self._op
            is_sum = [join is jnp.add for join in self.joins[1:]]
            given = [gradient if added else None for gradient, added in zip(found, is_sum, strict=True)]
            sums = self._replica.reduce_gradients(op, given, self.variables)
            found = [
                total if added or own is None else jax.lax.pmax(own, REPLICA_AXIS)
                for own, total, added in zip(found, sums, is_sum, strict=True)
            ]
        # A gradient inside of another loss is a part of that loss: no update follows from it.
        frame = context.current().frame
        marked = frame is None or not frame.is_of_loss
        return [_finished(gradient, variable, marked) for gradient, variable in zip(found, self.variables, strict=True)]

    def _build_only(self, args: PyTree, kwargs: PyTree) -> None:
        """Calls the loss for the variables that it creates: an unbuilt model has no `trainable_variables` yet."""
        frame = OverrideFrame(context.current().frame, (), ())
        with context.entered(frame=frame), keras_scope():
            self._loss_fn(*args, **kwargs)
        if frame.saw_new and frame.parent is not None:
            raise VariablesCreatedError
        raise ArgumentError(
            "There are no variables to differentiate with respect to: got an empty pytree. If a Keras model should "
            "have some, build it first (model.build(shape), or call it once)."
        )

    def _loss(
        self, values: list[jax.Array], args: PyTree, kwargs: PyTree
    ) -> tuple[jax.Array, tuple[list[jax.Array], list[jax.Array]]]:
        # Op-by-op shard_map has no symbolic zeros; there, what was never read counts as unconnected.
        op_by_op = self._replica is not None and context.runs_eagerly()
        values = values if op_by_op else self._boundary()(values)
        frame = OverrideFrame(context.current().frame, self.variables, values)
        with flax_state(), context.entered(frame=frame), keras_scope():
            result = self._loss_fn(*args, **kwargs)
        loss, aux = _checked_pair(result) if self._has_aux else (result, None)
        loss = _checked_loss(loss)
        if self._replica is not None:
            loss, why = difference(loss)
            self._loss_is_equal = why is None
        aux_arrays, self.aux = flatten_outputs(aux)
        self._written, self._saw_new = list(frame.written.values()), frame.saw_new
        if op_by_op:
            self._unconnected = [not frame.was_lent(variable) for variable in self.variables]
        return loss, (aux_arrays, frame.new_values())

    def _boundary(self) -> Callable[[list[jax.Array]], list[jax.Array]]:
        """Returns the identity on the variables' values; its backward pass notes which of them the loss depends on."""

        @jax.custom_vjp
        def boundary(values: list[jax.Array]) -> list[jax.Array]:
            return values

        def forward(values: list[jax.custom_derivatives.CustomVJPPrimal]) -> tuple[list[jax.Array], None]:
            return [value.value for value in values], None

        def backward(_: None, gradients: Sequence[jax.Array]) -> tuple[list[jax.Array | None]]:
            zero = jax.custom_derivatives.SymbolicZero
            self._unconnected = [isinstance(gradient, zero) for gradient in gradients]
            return ([None if cut else g for g, cut in zip(gradients, self._unconnected, strict=True)],)

        boundary.defvjp(forward, backward, symbolic_zeros=True)
        return boundary


def _finished(gradient: jax.Array | None, variable: VariableLike, marked: bool) -> jax.Array | None:
    """Gives a gradient the layout of its variable (an update touches each device's own part), and marks it as one."""
    if gradient is None:
        return None
    layout = layout_of(variable)
    if layout is not None:
        gradient = jax.lax.with_sharding_constraint(gradient, layout)
    return marked_as_gradient(gradient) if marked else gradient


def made_equal(variable: VariableLike, value: jax.Array, frame: StateFrame | None) -> jax.Array:
    """Returns a value that a loss has assigned, typed as equal on all replicas where the variable wants that."""
    of_replica = cast(ReplicaStateFrame, frame)
    is_equal = REPLICA_AXIS not in varying_axes(value)
    if is_equal or of_replica.is_of_loss or is_per_replica_variable(variable) or of_replica.defers(variable):
        return value
    value, why = difference(value, refused_if_different=True)
    if why is not None:
        raise ReplicaDivergenceError(name_of(variable), why.reason)
    return value


def stored_by(variable: VariableLike, value: jax.Array, frame: StateFrame | None, in_layer: bool = False) -> None:
    """Makes a value that the loss, or a layer in it, assigned, as frames keep it, the variable's."""
    if frame is not None:
        (frame.write_in_layer if in_layer else frame.write)(variable, value)
    else:
        store(variable, value)


def _checked_pair(result: PyTree) -> tuple[PyTree, PyTree]:
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise ArgumentError(
            f"With has_aux=True the loss function returns a pair (loss, aux), got {type(result).__name__}: "
            f"{result!r:.100}. Leave has_aux out if it returns the loss alone."
        )
    loss, aux = result
    return loss, aux


def _checked_loss(loss: PyTree) -> jax.Array:
    check_result(loss)
    if loss is None:
        raise ArgumentError("A loss is a scalar float, got None: the loss function has no `return`.")
    try:
        array = jnp.asarray(loss)
    except (TypeError, ValueError):
        raise ArgumentError(
            f"A loss is a scalar float, got {type(loss).__name__}: {loss!r:.100}. If there is more to return, use "
            "has_aux=True."
        ) from None
    if array.shape != () or not jnp.issubdtype(array.dtype, jnp.floating):
        raise ArgumentError(
            f"A loss is a scalar float, got shape {array.shape} and dtype {array.dtype}. Reduce the per-example "
            "losses, for example with rx.compute_average_loss."
        )
    return array


def _check_variables(variables: list[VariableLike]) -> None:
    for variable in variables:
        if not is_variable(variable):
            raise ArgumentError(
                "rx.value_and_grad differentiates with respect to variables (rx.Variable or keras.Variable), got "
                f"{type(variable).__name__}. For arrays use jax.value_and_grad."
            )
        if not jnp.issubdtype(dtype_of(variable), jnp.inexact):
            raise ArgumentError(f"Variable {name_of(variable)!r} is {dtype_of(variable)}: it has no gradient.")
