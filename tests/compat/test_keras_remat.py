"""What replicax uses of Keras's rematerialization, beside its public names."""

from __future__ import annotations

import importlib

import keras

import replicax.compat.keras_remat as keras_door
from tests.compat.guards import needs


def test_keras_still_has_them():
    core = importlib.import_module("keras.src.backend.jax.core")
    needs("keras", "keras.src.backend.jax.core.remat", lambda: core.remat)
    state = importlib.import_module("keras.src.backend.common.global_state")
    needs("keras", "get_global_attribute", lambda: state.get_global_attribute)


def test_keras_remat_calls_what_is_put_there(monkeypatch):
    core = importlib.import_module("keras.src.backend.jax.core")
    monkeypatch.setattr(core, "remat", core.remat)
    keras_door.replace_remat(lambda fn: lambda x: ("again", fn(x)))
    assert keras.remat(lambda x: x + 1)(2) == ("again", 3)


def test_an_inner_scope_reads_as_the_outer_one_and_keeps_what_is_assigned():
    first, second = keras.Variable(1.0), keras.Variable(2.0)
    with keras.StatelessScope([(first, 5.0)]):
        with keras_door.scope_within() as scope:
            assert float(first.value) == 5.0
            second.assign(first + second)
        assert float(second.value) == 2.0
    [variable], [value] = scope.assigned()
    assert variable is second
    assert float(value) == 7.0
