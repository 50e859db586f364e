"""What all trackers have in common."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax.tools.trackers.tracker as module
from replicax.errors import ArgumentError
from replicax.tools.trackers import Tracker


class Kept(Tracker):
    """Keeps what it is to write."""

    def __init__(self):
        super().__init__()
        self.events = []

    def _open(self):
        self.events.append("open again" if self._goes_on else "open")

    def _write(self, values, step):
        self.events.append((dict(values), step))

    def _write_hyperparameters(self, values):
        self.events.append(values)

    def _close(self):
        self.events.append("close")


def test_it_is_opened_once_and_closed_at_the_end_of_the_block():
    with Kept() as tracker:
        tracker.log({"loss": jnp.float32(0.5), "count": np.int64(3), "rate": jnp.bfloat16(0.25), "is": True}, 0)
        tracker.log({"loss": np.ones((1, 1))}, np.int32(7))
    first, second = {"loss": 0.5, "count": 3.0, "rate": 0.25, "is": 1.0}, {"loss": 1.0}
    assert tracker.events == ["open", (first, 0), (second, 7), "close"]
    tracker.close()
    assert tracker.events[-1] == "close"


@pytest.mark.parametrize("when", ["made", "opened"])
def test_a_chief_that_comes_again_goes_on(monkeypatch, when):
    if when == "made":
        monkeypatch.setattr(module, "follows_others", lambda: True)
    tracker = Kept()
    monkeypatch.setattr(module, "follows_others", lambda: when == "opened")
    tracker.log({"loss": 1.0}, 0)
    assert tracker.events[0] == "open again"


def test_a_worker_that_becomes_the_chief_goes_on(monkeypatch):
    tracker = Kept()
    monkeypatch.setattr(module, "is_chief", lambda: False)
    tracker.log({"loss": 1.0}, 0)
    monkeypatch.setattr(module, "is_chief", lambda: True)
    tracker.log({"loss": 1.0}, 1)
    assert tracker.events == ["open again", ({"loss": 1.0}, 1)]


def test_without_a_value_nothing_is_opened():
    with Kept() as tracker:
        pass
    assert tracker.events == []


def test_others_than_the_chief_check_and_write_nothing(monkeypatch):
    monkeypatch.setattr(module, "is_chief", lambda: False)
    tracker = Kept()
    tracker.log({"loss": 1.0}, 0)
    assert tracker.events == []
    with pytest.raises(ArgumentError):
        tracker.log({"loss": "low"}, 0)
    monkeypatch.setattr(module, "is_chief", lambda: True)
    tracker.log({"loss": 1.0}, 1)
    assert tracker.events == ["open again", ({"loss": 1.0}, 1)]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"loss": np.ones(3)}, "Reduce it first"),
        ({"loss": "x"}, "logs numbers"),
        ({"loss": 1j}, "logs numbers"),
        ({"loss": None}, "logs numbers"),
        ({3: 1.0}, "must be a text"),
        ({"": 1.0}, "must be a text"),
        ([1.0], "a mapping"),
    ],
)
def test_what_is_no_number_is_refused(values, words):
    with pytest.raises(ArgumentError, match=words):
        Kept().log(values, 0)


@pytest.mark.parametrize("step", [-1, 1.5, None, True, "1"])
def test_a_step_is_a_number(step):
    with pytest.raises(ArgumentError, match="`step`"):
        Kept().log({"loss": 1.0}, step)


def test_a_traced_value_is_refused():
    with pytest.raises(ArgumentError, match="being traced"):
        jax.jit(lambda x: Kept().log({"loss": x}, 0))(1.0)


def test_nested_hyperparameters_get_names_of_paths():
    tracker = Kept()
    tracker.log_hyperparameters({"optimizer": {"rate": 0.1, "kind": "adam"}, "epochs": 3})
    assert tracker.events[1] == {"optimizer/rate": 0.1, "optimizer/kind": "adam", "epochs": 3}
    with pytest.raises(ArgumentError, match="Hyperparameters"):
        tracker.log_hyperparameters({"a": {1: 2}})


@pytest.mark.parametrize("every", ["epoch", "batch", 2])
def test_the_callback_logs_what_fit_tells(every):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    tracker = Kept()
    x = np.arange(12, dtype=np.float32).reshape(6, 2) / 10
    history = model.fit(x, x[:, :1], batch_size=2, epochs=2, verbose=0, callbacks=[tracker.callback(every)])
    logged = [event for event in tracker.events if isinstance(event, tuple)]
    epochs = [event for event in logged if "loss" in event[0]]
    assert epochs == [({"loss": pytest.approx(loss)}, i) for i, loss in enumerate(history.history["loss"])]
    batches = [step for values, step in logged if "batch_loss" in values]
    assert batches == {"epoch": [], "batch": [1, 2, 3, 4, 5, 6], 2: [2, 4, 6]}[every]


@pytest.mark.parametrize("every", [0, -1, "step", 1.5, True])
def test_the_callback_logs_every_so_many_steps(every):
    with pytest.raises(ArgumentError, match="`every`"):
        Kept().callback(every)


def test_a_package_that_is_missing_is_named():
    with pytest.raises(ArgumentError, match=r"rx\.trackers\.X writes with the package no_such.*pip install y"):
        module.needed("no_such", "rx.trackers.X", "y")
