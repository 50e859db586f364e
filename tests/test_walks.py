"""`docs/architecture.md` follows a batch hop by hop; here a profiler follows it."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import keras
import numpy as np
import pytest

import replicax as rx
from tests.parameter_server import fakes

PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
HOP = re.compile(r"^\d+\. `([\w/]+\.py)`,? `([\w.]+)`", re.MULTILINE)
X, Y = np.ones((16, 4), np.float32), np.ones((16, 3), np.float32)

Calls = list[tuple[str, str]]


class Recorder:
    """Notes the calls of replicax's functions, in all threads that start after it, while it is on."""

    def __init__(self) -> None:
        self.calls: Calls = []
        self._is_on = False

    def profile(self, frame, event, argument) -> None:
        file = frame.f_code.co_filename
        if self._is_on and event == "call" and "/replicax/" in file:
            self.calls.append((file.rpartition("/replicax/")[2], frame.f_code.co_qualname))

    @contextmanager
    def on(self) -> Iterator[None]:
        before = sys.getprofile()
        self._is_on = True
        sys.setprofile(self.profile)
        try:
            yield
        finally:
            sys.setprofile(before)
            self._is_on = False


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    recorder = Recorder()
    threading.setprofile(recorder.profile)
    yield recorder
    threading.setprofile(None)


def hops(title: str) -> Calls:
    """Returns the hops that a section of the page lists: files and functions."""
    section = PAGE.read_text().partition(f"\n### {title}\n")[2].partition("\n#")[0]
    return HOP.findall(section)


def assert_follows(calls: Calls, said: Calls) -> None:
    assert len(said) > 2
    rest = iter(calls)
    missing = [hop for hop in said if hop not in rest]  # `in` goes on from the last one that was found
    assert not missing, f"{missing[0]} does not come after the hops before it. The calls are: {calls}"


def step_of(strategy: rx.Strategy) -> Callable[..., object]:
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
        optimizer = keras.optimizers.Adam()

    def step(batch):
        def loss_fn():
            return rx.compute_average_loss(((model(batch) - 1.0) ** 2).sum(axis=-1), global_batch_size=16)

        loss, gradients = rx.value_and_grad(loss_fn, model.trainable_variables)()
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return step


def test_a_step_of_run_goes_as_the_page_says(recorder: Recorder):
    strategy = rx.MirroredStrategy([f"cpu:{i}" for i in range(2)])
    step = step_of(strategy)
    train = rx.function(lambda batch: strategy.reduce("sum", strategy.run(step, args=(batch,)), axis=None))
    with iter(strategy.distribute_dataset([X] * 4)) as batches:
        for _ in range(3):
            train(next(batches))
        with recorder.on():
            train(next(batches))
    assert_follows(recorder.calls, hops("A step of `run`"))


def test_a_step_of_fit_goes_as_the_page_says(recorder: Recorder):
    class Recorded(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 3:
                self.recording = recorder.on()
                self.recording.__enter__()

        def on_train_batch_end(self, batch, logs=None):
            if batch == 3:
                self.recording.__exit__(None, None, None)

    with rx.MirroredStrategy([f"cpu:{i}" for i in range(2)]).scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
        model.compile("adam", "mse")
    model.fit(np.tile(X, (5, 1)), np.tile(Y, (5, 1)), batch_size=16, verbose=0, callbacks=[Recorded()])
    assert_follows(recorder.calls, hops("A step of `fit`") + hops("A step of `run`")[3:])


def test_a_step_on_parameter_servers_goes_as_the_page_says(recorder: Recorder, monkeypatch):
    with fakes.fake_ray(monkeypatch), fakes.strategy_of(workers=1, servers=1, max_staleness=0) as strategy:
        step = step_of(strategy)
        coordinator = rx.coordinator.ClusterCoordinator(strategy)
        for _ in range(3):
            coordinator.schedule(step, args=(X,)).fetch()
        with recorder.on():
            coordinator.schedule(step, args=(X,)).fetch()
            coordinator.join(60)
    assert_follows(recorder.calls, hops("A step on parameter servers"))
