from __future__ import annotations

import shutil

import keras
import numpy as np
import pytest

import replicax as rx
from replicax.errors import CheckpointError
from tests.migrate import mutations, recorded, zoo

ADAM = [
    *("opt_tf_keras_legacy_adam", "opt_tf_keras_new_adam", "opt_keras3_new_adam"),
    *("saver_adam", "saver_partitioned", "tf_keras_h5_whole"),
]


def test_damaged_checkpoints_are_refused_or_read_as_they_were_written():
    """The first of the thousand that `python -m tests.migrate.mutations` makes."""
    assert mutations.raw_errors(160) == []


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_many_more(seed):
    assert mutations.raw_errors(1000, seed) == []


def test_the_harness_notices_what_is_wrong(monkeypatch, tmp_path):
    """Wrong values and errors of any other kind are both reported: a reader without checksums has them."""
    monkeypatch.setattr("replicax.tensorflow.checkpoints.bundle.Bundle._compare", lambda *_: None)
    found = mutations.raw_errors(100)
    assert any("wrong values of" in problem for problem in found)
    monkeypatch.setattr("replicax.tensorflow.checkpoints.reader.located", lambda _: 1 // 0)
    assert all("ZeroDivisionError" in problem for problem in mutations.raw_errors(3))


@pytest.mark.parametrize(
    "seed", [0, 14, *(pytest.param(each, marks=pytest.mark.nightly) for each in range(1, 20) if each != 14)]
)
def test_a_restore_that_is_refused_assigns_nothing(tmp_path, seed):
    model = zoo.mlp(keras)
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)
    variables = [*model.weights, *optimizer.variables]
    refused = 0
    for i in range(80):
        rng = np.random.default_rng((seed, i))
        fixture = tmp_path / str(i)
        shutil.copytree(recorded.FIXTURES / ADAM[i % len(ADAM)], fixture)
        is_bundle = bool(list(fixture.glob("**/*.index")))
        (mutations.damage_inside if is_bundle and rng.random() < 0.6 else mutations.damage_bytes)(fixture, rng)
        before = [np.asarray(variable) for variable in variables]
        try:
            rx.Checkpoint(model=model, optimizer=optimizer).restore(recorded.checkpoint_of(fixture))
        except CheckpointError:
            refused += 1
            after = [np.asarray(variable) for variable in variables]
            assert all(a.tobytes() == b.tobytes() for a, b in zip(before, after, strict=True)), fixture
    assert refused > 40
