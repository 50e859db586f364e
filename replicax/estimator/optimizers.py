"""How a training step updates the variables: by a Keras optimizer, one of optax, or a function of the user's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, cast

import jax
import jax.numpy as jnp

from replicax.contracts.variable_access import AssignableLike, VariableLike
from replicax.estimator.spec import EstimatorSpec, takes_gradients
from replicax.typing import PyTree
from replicax.variables import Variable

if TYPE_CHECKING:
    import keras


class GradientTransformation(Protocol):
    """An optimizer of optax."""

    def init(self, params: PyTree) -> PyTree:
        """Returns its state."""

    def update(self, updates: PyTree, state: PyTree, params: PyTree) -> tuple[PyTree, PyTree]:
        """Returns what to add to the parameters, and the new state."""


class Updater(Protocol):
    """Updates variables from gradients."""

    takes_gradients: bool

    @property
    def state(self) -> Sequence[VariableLike]:
        """Its own variables."""

    def scaled(self, loss: jax.Array) -> jax.Array:
        """Returns the loss to differentiate."""

    def update(self, spec: EstimatorSpec, gradients: Sequence[jax.Array | None]) -> None:
        """Updates the variables by this trace's spec; gradients are None where the loss does not depend on them."""


class KerasUpdater:
    """Updates by a Keras optimizer, which it builds."""

    takes_gradients = True

    def __init__(self, optimizer: keras.optimizers.Optimizer, variables: Sequence[VariableLike]):
        self._optimizer, self._variables = optimizer, list(variables)
        if not optimizer.built:
            optimizer.build(self._variables)

    @property
    def state(self) -> Sequence[VariableLike]:
        return list(self._optimizer.variables)

    def scaled(self, loss: jax.Array) -> jax.Array:
        return cast(jax.Array, self._optimizer.scale_loss(loss))

    def update(self, spec: EstimatorSpec, gradients: Sequence[jax.Array | None]) -> None:
        self._optimizer.apply(list(gradients), self._variables)


class OptaxUpdater:
    """Updates by an optimizer of optax. Its state are variables, named by their paths in it."""

    takes_gradients = True

    def __init__(self, optimizer: GradientTransformation, variables: Mapping[str, VariableLike]):
        self._optimizer, self._variables = optimizer, cast("dict[str, AssignableLike]", dict(variables))
        state = optimizer.init(self._values())
        leaves, self._treedef = jax.tree_util.tree_flatten_with_path(state)
        self._state = [
            Variable(leaf, trainable=False, name=f"optimizer/{jax.tree_util.keystr(path, simple=True, separator='/')}")
            for path, leaf in leaves
        ]

    @property
    def state(self) -> Sequence[VariableLike]:
        return self._state

    def _values(self) -> dict[str, jax.Array]:
        return {name: jnp.asarray(variable.value) for name, variable in self._variables.items()}

    def scaled(self, loss: jax.Array) -> jax.Array:
        return loss

    def update(self, spec: EstimatorSpec, gradients: Sequence[jax.Array | None]) -> None:
        values = self._values()
        given = {
            name: jnp.zeros_like(value) if gradient is None else gradient
            for (name, value), gradient in zip(values.items(), gradients, strict=True)
        }
        state = jax.tree_util.tree_unflatten(self._treedef, [variable.value for variable in self._state])
        updates, state = self._optimizer.update(given, state, values)
        for name, variable in self._variables.items():
            variable.assign(values[name] + updates[name].astype(values[name].dtype))
        for own, value in zip(self._state, jax.tree_util.tree_leaves(state), strict=True):
            own.assign(value)


class FunctionUpdater:
    """Updates by the `train_op` that the model function has returned in the same trace."""

    def __init__(self, spec: EstimatorSpec, variables: Sequence[VariableLike]):
        assert spec.train_op is not None
        self.takes_gradients, self._variables = takes_gradients(spec.train_op), list(variables)
        self.state: Sequence[VariableLike] = ()

    def scaled(self, loss: jax.Array) -> jax.Array:
        return loss

    def update(self, spec: EstimatorSpec, gradients: Sequence[jax.Array | None]) -> None:
        assert spec.train_op is not None
        if self.takes_gradients:
            spec.train_op([pair for pair in zip(gradients, self._variables, strict=True) if pair[0] is not None])
        else:
            spec.train_op()


def updater_of(spec: EstimatorSpec, trainable: Mapping[str, VariableLike]) -> Updater:
    """Returns what updates the variables as a spec says."""
    if spec.optimizer is None:
        return FunctionUpdater(spec, [*trainable.values()])
    if hasattr(spec.optimizer, "apply"):
        return KerasUpdater(spec.optimizer, [*trainable.values()])
    return OptaxUpdater(spec.optimizer, trainable)
