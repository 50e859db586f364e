"""The names that are used of Keras's global generator of seeds."""

from __future__ import annotations

import importlib

import keras
import numpy as np

import replicax.compat.keras_seeds as keras_door
from tests.compat.guards import needs


def test_keras_still_has_them():
    state = importlib.import_module("keras.src.backend.common.global_state")
    seeds = importlib.import_module("keras.src.random.seed_generator")
    needs("keras", "get_global_attribute", lambda: state.get_global_attribute)
    needs("keras", "global_seed_generator", lambda: seeds.global_seed_generator)


def test_numbers_go_on_from_a_state():
    keras.random.normal((2,))
    state = keras_door.global_seed_state()
    first = keras.random.normal((2,))
    keras_door.set_global_seed_state(state)
    np.testing.assert_array_equal(keras.random.normal((2,)), first)
