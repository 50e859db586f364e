"""Keras in a strategy's scope. A scope that is opened without Keras loads nothing of its loops."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from replicax.compat.keras_backend import keras_is_loaded
from replicax.program.keras.state import keras_ownership

if TYPE_CHECKING:
    from replicax.contracts.strategy import StrategyBase
    from replicax.runtime.precision import Precision


@contextlib.contextmanager
def keras_entered(strategy: StrategyBase) -> Iterator[None]:
    """Makes Keras models and variables created in the `with` block belong to `strategy`; nothing without Keras."""
    if keras_is_loaded() or strategy.precision is not None:
        from replicax.keras.models import install_trainer_hooks

        install_trainer_hooks()
        if "keras_hub" in sys.modules:
            from replicax.weights.conversions import install_conversion_hooks

            install_conversion_hooks()
    with keras_ownership(strategy), _policy(strategy.precision):
        yield


@contextlib.contextmanager
def _policy(precision: Precision | None) -> Iterator[None]:
    """Lets layers made in the `with` block compute as `precision` says."""
    if precision is None:
        yield
        return
    import keras

    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(precision.keras_policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)
