"""Outer optimizers: what becomes of the average of the islands' changes.

An outer step takes for a gradient how far the islands have moved, on average, *against* the direction of training:
the value at the round's start minus the mean of the islands' values. Subtracting it gives that mean.
"""

from __future__ import annotations

import functools
import json
import re
import types
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, cast

import jax
import jax.numpy as jnp
import numpy as np

from replicax.checks import is_real
from replicax.errors import ArgumentError
from replicax.typing import PyTree

Arrays = Sequence[jax.Array]
Positions = Sequence[int | None]
# An optimizer of Keras names its variables after those that they belong to.
_PREFIX = "outer"
_OF_VARIABLE = re.compile(rf"\b{_PREFIX}(\d+)_")


class OuterOptimizer(Protocol):
    """A pure outer optimizer, for the variables of one fragment."""

    @property
    def kind(self) -> str:
        """Its name: with another one its state has another meaning."""

    @property
    def described(self) -> str:
        """Its name and settings, which must be the same on all islands."""

    def init(self, values: Arrays) -> PyTree:
        """Returns the state for variables of these values, a pytree of arrays."""

    def update(self, gradients: Arrays, state: PyTree, values: Arrays) -> tuple[list[jax.Array], PyTree]:
        """Returns the new values and the new state; it can be traced."""

    def grown(self, state: PyTree, positions: Positions, values: Arrays) -> PyTree:
        """Returns the state for other variables, by their positions among those before; None for a new one."""


class Averaging:
    """Takes the mean of the islands' values, as local SGD does (Stich 2018, arXiv:1805.09767)."""

    kind = described = "the mean"

    def init(self, values: Arrays) -> PyTree:
        del values
        return ()

    def update(self, gradients: Arrays, state: PyTree, values: Arrays) -> tuple[list[jax.Array], PyTree]:
        return [value - gradient for value, gradient in zip(values, gradients, strict=True)], state

    def grown(self, state: PyTree, positions: Positions, values: Arrays) -> PyTree:
        del positions, values
        return state


class Nesterov(NamedTuple):
    """SGD with Nesterov momentum: DiLoCo's default (Douillard et al. 2023, arXiv:2311.08105)."""

    learning_rate: float = 0.7
    momentum: float = 0.9

    @property
    def kind(self) -> str:
        return "Nesterov"

    @property
    def described(self) -> str:
        return repr(self)

    def init(self, values: Arrays) -> PyTree:
        return [jnp.zeros_like(value) for value in values]

    def update(self, gradients: Arrays, state: PyTree, values: Arrays) -> tuple[list[jax.Array], PyTree]:
        # As in torch and optax.
        moments = [self.momentum * m + g for m, g in zip(state, gradients, strict=True)]
        steps = [g + self.momentum * m for m, g in zip(moments, gradients, strict=True)]
        return [x - self.learning_rate * step for x, step in zip(values, steps, strict=True)], moments

    def grown(self, state: PyTree, positions: Positions, values: Arrays) -> PyTree:
        return _grown(state, self.init(values), positions)


def _grown(old: PyTree, new: PyTree, positions: Positions) -> PyTree:
    """Returns `new` with what `old` has: a list in a state of optax has an element for each variable."""
    if isinstance(new, list):
        return [begun if i is None else old[i] for begun, i in zip(new, positions, strict=True)]
    if isinstance(new, tuple):
        parts = [_grown(a, b, positions) for a, b in zip(old, new, strict=True)]
        return type(new)(*parts) if hasattr(new, "_fields") else tuple(parts)
    if isinstance(new, dict):
        return {key: _grown(old[key], part, positions) for key, part in new.items()}
    return old


class _OptaxOuter:
    def __init__(self, transformation: Any):
        self._transformation = transformation
        self.kind = "optax"

    @functools.cached_property
    def described(self) -> str:
        """A digest of its program for some variables: functions have no settings to compare."""
        try:
            return f"optax (digest {zlib.crc32(self._program().encode()):08x})"
        except (ValueError, TypeError, IndexError, KeyError):  # It fits only certain variables.
            return self.kind

    def _program(self) -> str:
        example = [jax.ShapeDtypeStruct((2, 2), jnp.float32)]
        state = jax.eval_shape(self.init, example)
        traced = jax.make_jaxpr(self.update)(example, state, example)
        consts = [np.asarray(each).tolist() for each in traced.consts]
        return re.sub(r"0x[0-9a-f]+", "", f"{traced} {consts}")

    def init(self, values: Arrays) -> PyTree:
        return self._transformation.init(list(values))

    def update(self, gradients: Arrays, state: PyTree, values: Arrays) -> tuple[list[jax.Array], PyTree]:
        updates, state = self._transformation.update(list(gradients), state, list(values))
        return [value + update.astype(value.dtype) for value, update in zip(values, updates, strict=True)], state

    def grown(self, state: PyTree, positions: Positions, values: Arrays) -> PyTree:
        return _grown(state, self.init(values), positions)


class _KerasOuter:
    """An optimizer of Keras by its stateless methods; each fragment has a copy, with variables of its own."""

    def __init__(self, optimizer: Any):
        self._config, self._kind = optimizer.get_config(), type(optimizer)
        self.kind = f"keras.{self._kind.__name__}"
        self._built: dict[tuple[tuple[tuple[int, ...], str], ...], Any] = {}

    @property
    def described(self) -> str:
        settings = {name: value for name, value in self._config.items() if name != "name"}
        return f"{self.kind}({json.dumps(settings, sort_keys=True, default=str)})"

    def init(self, values: Arrays) -> PyTree:
        return {variable.path: jnp.asarray(np.asarray(variable)) for variable in self._optimizer(values).variables}

    def update(self, gradients: Arrays, state: PyTree, values: Arrays) -> tuple[list[jax.Array], PyTree]:
        optimizer = self._optimizer(values)
        paths = [variable.path for variable in optimizer.variables]
        new, held = optimizer.stateless_apply([state[path] for path in paths], list(gradients), list(values))
        return list(new), dict(zip(paths, held, strict=True))

    def grown(self, state: PyTree, positions: Positions, values: Arrays) -> PyTree:
        def before(path: str) -> str | None:
            found = _OF_VARIABLE.search(path)
            if found is None:
                return path
            position = positions[int(found[1])]
            return None if position is None else _OF_VARIABLE.sub(f"{_PREFIX}{position}_", path, 1)

        begun = self.init(values)
        return {path: state[was] if (was := before(path)) is not None else begun[path] for path in begun}

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
            optimizer.build(
                [
                    keras.Variable(np.zeros(shape, np.float32), dtype=dtype, name=f"{_PREFIX}{i}")
                    for i, (shape, dtype) in enumerate(kinds)
                ]
            )
        finally:
            keras.distribution.set_distribution(previous)
        return optimizer


def outer_optimizer(given: object) -> OuterOptimizer:
    """Returns the outer optimizer that a user has given; None is DiLoCo's Nesterov momentum."""
    if given is None:
        return Nesterov()
    if isinstance(given, (Nesterov, Averaging)):
        return cast(OuterOptimizer, given)
    if isinstance(given, type) or _is_uncalled(given):
        name = getattr(given, "__name__", given)
        raise ArgumentError(f"`outer_optimizer` is {given!r:.100}. Call it: {name}(learning_rate).")
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


def _is_uncalled(given: object) -> bool:
    return isinstance(given, types.FunctionType) and (given.__module__ or "").partition(".")[0] == "optax"
