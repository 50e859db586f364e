"""The two places where Keras has to be told about programs; installed once, when Keras first takes part in one.

Everything else goes through `keras.StatelessScope`. These cannot: both concern JAX control flow inside Keras, which
traces its body on its own. Outside of programs both methods do exactly what they did before.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax

import replicax.context as context
from replicax.compat import vary
from replicax.runtime.mesh import REPLICA_AXIS


@functools.cache
def install_keras_hooks() -> None:
    """Wraps `LossScaleOptimizer.apply` and `RNN.get_initial_state`."""
    import keras

    optimizer_class = keras.optimizers.LossScaleOptimizer
    optimizer_class.apply = _with_loss_scale(optimizer_class.apply)
    keras.layers.RNN.get_initial_state = _with_varying_state(keras.layers.RNN.get_initial_state)


def _with_loss_scale(original: Any) -> Any:
    """Keras assigns variables in the branches of a `cond`, from which a program cannot take them.

    The optimizer's own `stateless_apply` returns them instead.
    """

    @functools.wraps(original)
    def apply(self: Any, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        if context.current().frame is None:
            original(self, grads, trainable_variables)
            return
        if not self.built:
            self.build(list(trainable_variables or ()))
            self.built = True
        known = list(self._trainable_variables)
        given = {id(v): g for v, g in zip(trainable_variables or known, grads, strict=True)}
        new_trainable, new_own = self.stateless_apply(
            [variable.value for variable in self.variables],
            [given.get(id(variable)) for variable in known],
            [variable.value for variable in known],
        )
        for variable, value in zip((*known, *self.variables), (*new_trainable, *new_own), strict=True):
            variable.assign(value)

    return apply


def _with_varying_state(original: Any) -> Any:
    """A recurrent layer's loop starts from zeros, equal on all replicas, and goes on with values that are not.

    JAX wants a loop's state to have one type, so it must start as a value that may differ.
    """

    @functools.wraps(original)
    def get_initial_state(self: Any, batch_size: Any) -> Any:
        state = original(self, batch_size)
        if context.current().replica is None:
            return state
        return jax.tree_util.tree_map(lambda zeros: vary(zeros, REPLICA_AXIS), state)

    return get_initial_state
