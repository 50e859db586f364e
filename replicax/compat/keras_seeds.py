"""Keras's global generator of seeds, for which it exports no name. Guard: tests/compat/test_keras_seeds.py."""

from __future__ import annotations

import sys

import numpy as np


def global_seed_state() -> np.ndarray | None:
    """Returns the state of Keras's global seed generator; None if nothing was drawn from it."""
    # Without the names: what draws without a seed goes on with other numbers in the other process.
    if "keras" not in sys.modules:
        return None
    from keras.src.backend.common.global_state import get_global_attribute

    generator = get_global_attribute("global_seed_generator")
    return None if generator is None else np.asarray(generator.state.value)


def set_global_seed_state(state: np.ndarray) -> None:
    """Makes Keras's global seed generator go on from a state; without the names as for `global_seed_state`."""
    from keras.src.random.seed_generator import global_seed_generator

    global_seed_generator().state.assign(state)
