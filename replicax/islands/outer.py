"""Outer optimizers: what becomes of the average of the islands' changes.

An outer step takes for a gradient how far the islands have moved, on average, *against* the direction of training:
the value at the round's start minus the mean of the islands' values. Subtracting it gives that mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, cast

import jax
import jax.numpy as jnp
import numpy as np

from replicax.checks import is_real
from replicax.errors import ArgumentError
from replicax.typing import PyTree

Arrays = Sequence[jax.Array]


class OuterOptimizer(Protocol):
    """A pure outer optimizer, for the variables of one fragment."""

    def init(self, values: Arrays) -> PyTree:
        """Returns the state for variables of these values, a pytree of arrays."""

    def update(self, gradients: Arrays, state: PyTree, values: Arrays) -> tuple[list[jax.Array], PyTree]:
        """Returns the new values and the new state; it can be traced."""


class Averaging:
    """Takes the mean of the islands' values, as local SGD does (Stich 2018, arXiv:1805.09767)."""

    def init(self, values: Arrays) -> PyTree:
        del values
        return ()

    def update(self, gradients: Arrays, state: PyTree, values: Arrays) -> tuple[list[jax.Array], PyTree]:
        return [value - gradient for value, gradient in zip(values, gradients, strict=True)], state


class Nesterov(NamedTuple):
    """SGD with Nesterov momentum: DiLoCo's default (Douillard et al. 2023, arXiv:2311.08105).

    `m <- momentum * m + g`, then `x <- x - learning_rate * (g + momentum * m)`, as in torch and optax.

    Attributes:
        learning_rate: The outer learning rate.
        momentum: The outer momentum.
    """

    learning_rate: float = 0.7
    momentum: float = 0.9

    def init(self, values: Arrays) -> PyTree:
        return [jnp.zeros_like(value) for value in values]

    def update(self, gradients: Arrays, state: PyTree, values: Arrays) -> tuple[list[jax.Array], PyTree]:
        moments = [self.momentum * m + g for m, g in zip(state, gradients, strict=True)]
        steps = [g + self.momentum * m for m, g in zip(moments, gradients, strict=True)]
        return [x - self.learning_rate * step for x, step in zip(values, steps, strict=True)], moments


class _OptaxOuter:
    def __init__(self, transformation: Any):
        self._transformation = transformation

    def init(self, values: Arrays) -> PyTree:
        return self._transformation.init(list(values))

    def update(self, gradients: Arrays, state: PyTree, values: Arrays) -> tuple[list[jax.Array], PyTree]:
        updates, state = self._transformation.update(list(gradients), state, list(values))
        return [value + update.astype(value.dtype) for value, update in zip(values, updates, strict=True)], state


class _KerasOuter:
    """An optimizer of Keras by its stateless methods; each fragment has a copy, with variables of its own."""

    def __init__(self, optimizer: Any):
        self._config, self._kind = optimizer.get_config(), type(optimizer)
        self._built: dict[tuple[tuple[tuple[int, ...], str], ...], Any] = {}

    def init(self, values: Arrays) -> PyTree:
        return [jnp.asarray(np.asarray(variable)) for variable in self._optimizer(values).variables]

    def update(self, gradients: Arrays, state: PyTree, values: Arrays) -> tuple[list[jax.Array], PyTree]:
        optimizer = self._optimizer(values)
        new, state = optimizer.stateless_apply(list(state), list(gradients), list(values))
        return list(new), list(state)

    def _optimizer(self, values: Arrays) -> Any:
        kinds = tuple((tuple(value.shape), str(value.dtype)) for value in values)
        if kinds not in self._built:
            self._built[kinds] = self._made(kinds)
        return self._built[kinds]

    def _made(self, kinds: Sequence[tuple[tuple[int, ...], str]]) -> Any:
        import keras

        previous = keras.distribution.distribution()
        keras.distribution.set_distribution(None)  # A strategy whose scope is open is not to own its variables.
        try:
            optimizer = self._kind.from_config(self._config)
            # Only their shapes and dtypes matter.
            optimizer.build([keras.Variable(np.zeros(shape, np.float32), dtype=dtype) for shape, dtype in kinds])
        finally:
            keras.distribution.set_distribution(previous)
        return optimizer


def outer_optimizer(given: object) -> OuterOptimizer:
    """Returns the outer optimizer that a user has given.

    Args:
        given: None for DiLoCo's Nesterov momentum; an optimizer of Keras, or a transformation of optax.

    Raises:
        ArgumentError: It is something else.
    """
    if given is None:
        return Nesterov()
    if isinstance(given, (Nesterov, Averaging)):
        return cast(OuterOptimizer, given)
    if hasattr(given, "stateless_apply"):
        return _KerasOuter(given)
    if callable(getattr(given, "init", None)) and callable(getattr(given, "update", None)):
        return _OptaxOuter(given)
    hint = (
        f" For a learning rate: keras.optimizers.SGD({given}, momentum=0.9, nesterov=True)." if is_real(given) else ""
    )
    raise ArgumentError(
        f"`outer_optimizer` is an optimizer of Keras or a transformation of optax, got {given!r:.100}.{hint}"
    )
