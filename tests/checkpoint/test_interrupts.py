"""Ctrl-C while values are restored: it comes when all objects have their new values; a second one comes at once."""

from __future__ import annotations

import signal
from pathlib import Path

import keras
import numpy as np
import pytest

import replicax as rx
from replicax.checkpoint import restore_variables


def net() -> keras.Model:
    with rx.MirroredStrategy(["cpu:0", "cpu:1"]).scope():
        return keras.Sequential([keras.Input((2,)), keras.layers.Dense(3), keras.layers.Dense(1)])


def weights(model: keras.Model) -> set[float]:
    return {float(value) for weight in model.get_weights() for value in weight.flat}


def fill(model: keras.Model, value: float) -> None:
    model.set_weights([np.full_like(weight, value) for weight in model.get_weights()])


def restore(model: keras.Model, folder: Path) -> None:
    rx.Checkpoint(model=model).restore(folder / "c")


def restore_large(model: keras.Model, folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("replicax.checkpoint.sequential_restore._LARGE_BYTES", 1)
        restore(model, folder)


def restore_by_name(model: keras.Model, folder: Path) -> None:
    restore_variables(folder / "c", rx.Checkpoint(model=model).variables(), partial=True)


@pytest.mark.parametrize("how", [restore, restore_large, restore_by_name], ids=lambda how: how.__name__)
def test_an_interrupt_waits_until_all_objects_have_their_new_values(how, tmp_path, monkeypatch):
    model = net()
    fill(model, 1.0)
    rx.Checkpoint(model=model).write(tmp_path / "c")
    assign, calls, at = keras.Variable.assign, [0], [-1, 1]

    def counted(self, value):
        if calls[0] == at[0]:
            for _ in range(at[1]):
                signal.raise_signal(signal.SIGINT)
        calls[0] += 1
        return assign(self, value)

    def interrupted(call: int, times: int) -> None:
        fill(model, 0.0)
        calls[0], at[:] = 0, [call, times]
        with pytest.raises(KeyboardInterrupt):
            how(model, tmp_path)
        at[0] = -1

    monkeypatch.setattr(keras.Variable, "assign", counted)
    for call in range(4):
        interrupted(call, times=1)
        assert weights(model) == {1.0}
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    interrupted(2, times=2)
    assert weights(model) == {0.0, 1.0}
    how(model, tmp_path)
    assert weights(model) == {1.0}


@pytest.mark.parametrize("call", range(4))
def test_so_it_does_when_weights_are_loaded(call, tmp_path):
    model, calls = net(), []
    fill(model, 1.0)
    rx.weights.save_safetensors(model, tmp_path / "w.safetensors")
    fill(model, 0.0)

    def struck(values):
        if len(calls) == call:
            signal.raise_signal(signal.SIGINT)
        calls.append(call)
        return values

    names = {
        f"{layer.name}/{name}": (f"{layer.name}/{name}", struck)
        for layer in model.layers
        for name in ("kernel", "bias")
    }
    with pytest.raises(KeyboardInterrupt):
        rx.weights.load_safetensors(model, tmp_path / "w.safetensors", names)
    assert weights(model) == {1.0}
