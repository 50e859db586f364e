"""Saving: a file does not know under which strategy it was written, and training goes on as if nothing had happened."""

from __future__ import annotations

import errno

import keras
import numpy as np
import pytest

from replicax.keras.models import strategy_of
from tests.keras.comparing import CLASSES, X, Y, assert_same, classifier, made, state_of


def with_adam():
    """Without dropout, whose random state Keras does not save."""
    return classifier(keras.layers.BatchNormalization(), optimizer=keras.optimizers.Adam(0.01))


@pytest.fixture(scope="module")
def train():
    """Trains for one more epoch, the same each time that it is asked for one."""

    def one_epoch(model, epoch):
        order = np.random.default_rng(epoch).permutation(len(X))
        return model.fit(X[order], Y[order], batch_size=7, shuffle=False, verbose=0).history

    return one_epoch


@pytest.fixture(scope="module")
def uninterrupted(train):
    """What two epochs give without strategy or saving: history of the second, state and predictions."""
    model = made(None, with_adam)
    train(model, 0)
    return train(model, 1), state_of(model), model.predict(X, batch_size=7, verbose=0)


FROM_TO = [(8, None), (None, 8), (8, 3)]


def strategy_over(mirrored, devices):
    return None if devices is None else mirrored(devices)


@pytest.mark.daily(1)
@pytest.mark.parametrize(("before", "after"), FROM_TO)
def test_a_saved_model_goes_on_under_any_strategy(mirrored, tmp_path, train, uninterrupted, before, after):
    model = made(strategy_over(mirrored, before), with_adam)
    train(model, 0)
    model.save(tmp_path / "model.keras")
    strategy = strategy_over(mirrored, after)
    loaded = made(strategy, lambda: keras.saving.load_model(tmp_path / "model.keras"))
    assert strategy_of(loaded) is strategy
    assert_same(state_of(loaded), state_of(model), tolerance=0)
    history = train(loaded, 1)
    assert_same((history, state_of(loaded), loaded.predict(X, batch_size=7, verbose=0)), uninterrupted)


@pytest.mark.daily(2)
@pytest.mark.parametrize(("before", "after"), FROM_TO)
def test_saved_weights_go_on_under_any_strategy(mirrored, tmp_path, train, uninterrupted, before, after):
    model = made(strategy_over(mirrored, before), with_adam)
    train(model, 0)
    model.save_weights(tmp_path / "model.weights.h5")
    loaded = made(strategy_over(mirrored, after), with_adam)
    loaded.optimizer.build(loaded.trainable_variables)
    loaded.load_weights(tmp_path / "model.weights.h5")
    assert_same(state_of(loaded), state_of(model), tolerance=0)
    assert_same((train(loaded, 1), state_of(loaded)), uninterrupted[:2])


def test_weights_can_be_loaded_into_a_model_that_has_trained(eight, tmp_path, train, uninterrupted):
    model = made(eight, with_adam)
    train(model, 0)
    model.save_weights(tmp_path / "model.weights.h5")
    train(model, 5)
    model.load_weights(tmp_path / "model.weights.h5")
    assert_same((train(model, 1), state_of(model)), uninterrupted[:2])


def test_a_model_of_a_strategy_is_exported_in_the_same_words_as_any(eight):
    assert made(eight, with_adam).get_config()["layers"][1]["class_name"] == "Dense"
    assert "replicax" not in made(eight, with_adam).to_json()


@pytest.mark.parametrize("answer", ["n", "y"])
def test_a_file_that_is_not_to_be_overwritten_stays_unless_its_user_says_so(eight, tmp_path, monkeypatch, answer):
    model, asked = made(eight, with_adam), []
    monkeypatch.setattr("builtins.input", lambda question="": asked.append(question) or answer)
    for save, name in ((model.save, "model.keras"), (model.save_weights, "model.weights.h5")):
        path = tmp_path / name
        save(path, overwrite=False)
        path.write_text("precious")
        save(path, overwrite=False)
        assert (path.read_bytes() == b"precious") == (answer == "n")
    assert all(name in question for name, question in zip(["model.keras", "weights.h5"], asked, strict=True))


# Places that cannot be written to.


@pytest.mark.parametrize("place", ["missing folder", "below a file", "a folder itself"])
@pytest.mark.parametrize("kind", ["model.keras", "model.weights.h5"])
def test_saving_into_an_unwritable_place_is_an_error_and_writes_nothing(eight, tmp_path, place, kind):
    model = made(eight, with_adam)
    (tmp_path / "file").write_text("precious")
    (tmp_path / "folder" / kind).mkdir(parents=True)
    path = {
        "missing folder": tmp_path / "missing" / kind,
        "below a file": tmp_path / "file" / kind,
        "a folder itself": tmp_path / "folder" / kind,
    }[place]
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(OSError, match=kind):
        model.save(path) if kind == "model.keras" else model.save_weights(path)
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "file").read_text() == "precious"


@pytest.mark.parametrize("kind", ["model.keras", "model.weights.h5"])
@pytest.mark.parametrize("existed", [False, True])
def test_a_disk_that_fills_up_leaves_nothing_half_written(eight, tmp_path, kind, existed):
    class FullDisk(keras.layers.Dense):
        fails = False

        def save_own_variables(self, store):
            super().save_own_variables(store)
            if self.fails:
                raise OSError(errno.ENOSPC, "No space left on device")

    model = made(eight, lambda: classifier(FullDisk(CLASSES)))
    save = model.save if kind == "model.keras" else model.save_weights
    if existed:
        save(tmp_path / kind)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    model.layers[1].fails = True
    with pytest.raises(OSError, match="No space left"):
        save(tmp_path / kind)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
