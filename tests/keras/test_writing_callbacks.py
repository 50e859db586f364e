"""Callbacks that write are called on the chief of the moment, and each of their hooks once."""

from __future__ import annotations

import csv
import random
from types import SimpleNamespace

import keras
import pytest

from replicax.keras.chief_writes import Writers

EPOCHS, STEPS = 3, 2


class RemoteMonitor(keras.callbacks.Callback):
    """Writes what it is called for to a list that all workers share; it goes by the name of one of Keras's writers."""

    def __init__(self, written: list[str], worker: int):
        super().__init__()
        self.written, self.worker = written, worker

    def on_train_begin(self, logs=None):
        self.written.append("begin")

    def on_epoch_end(self, epoch, logs=None):
        self.written.append(f"epoch {epoch}")

    def on_train_end(self, logs=None):
        self.written.append("end")


class Worker:
    """A worker in the middle of a loop of Keras's, which goes on from hook to hook."""

    def __init__(self, index: int, callback: keras.callbacks.Callback, goes_on: bool = False):
        self.placement = SimpleNamespace(is_chief=index == 0)
        self.callback = callback
        callback.set_params({"steps": STEPS})
        self.writers = Writers([callback], SimpleNamespace(placement=self.placement))
        self.writers.goes_on = goes_on
        self._installed = self.writers.installed()
        self._installed.__enter__()
        self.calls = self.hooks()

    def hooks(self):
        yield lambda: self.callback.on_train_begin()
        for epoch in range(EPOCHS):
            yield lambda epoch=epoch: self.callback.on_epoch_begin(epoch)
            for batch in range(STEPS):
                yield lambda batch=batch: self.callback.on_train_batch_begin(batch)
                yield lambda batch=batch: self.callback.on_train_batch_end(batch, {"loss": 1.0})
            yield lambda epoch=epoch: self.callback.on_epoch_end(epoch, {"loss": float(epoch)})
            yield self.writers.settle  # as the decisions at the end of an epoch do, which all make together
        yield lambda: self.callback.on_train_end()


NUMBER_OF_HOOKS = 2 + EPOCHS * (3 + 2 * STEPS)


@pytest.mark.parametrize("moment", range(1, NUMBER_OF_HOOKS))
def test_the_next_chief_goes_on_wherever_the_last_one_was_lost(moment):
    written: list[str] = []
    workers = [Worker(index, RemoteMonitor(written, index)) for index in range(2)]
    for number, (first, second) in enumerate(zip(*(worker.calls for worker in workers), strict=True)):
        if number < moment:
            first()
        if number == moment:
            workers[1].placement.is_chief = True
            workers[1].writers.catch_up()
        second()
    epochs = [each for each in written if each.startswith("epoch")]
    assert sorted(set(epochs)) == [f"epoch {epoch}" for epoch in range(EPOCHS)]
    assert epochs == sorted(epochs)
    assert len(epochs) <= EPOCHS + 1  # One that the last chief wrote, and was lost before all had come through it.
    assert written[-1] == "end"


def test_a_chief_writes_all_once_and_nobody_else_anything():
    written: list[str] = []
    workers = [Worker(index, RemoteMonitor(written, index)) for index in range(3)]
    for calls in zip(*(worker.calls for worker in workers), strict=True):
        for call in random.sample(calls, len(calls)):
            call()
    assert written == ["begin", "epoch 0", "epoch 1", "epoch 2", "end"]


@pytest.mark.parametrize("moment", range(1, NUMBER_OF_HOOKS))
def test_a_table_of_logs_has_a_row_for_each_epoch(tmp_path, moment):
    path = str(tmp_path / "log.csv")
    workers = [Worker(index, keras.callbacks.CSVLogger(path)) for index in range(2)]
    for worker in workers:
        worker.callback.set_model(SimpleNamespace(stop_training=False))
    for number, (first, second) in enumerate(zip(*(worker.calls for worker in workers), strict=True)):
        if number < moment:
            first()
        if number == moment:
            if workers[0].callback.csv_file:
                workers[0].callback.csv_file.close()  # It is killed; Keras writes each row through.
            workers[1].placement.is_chief = True
            workers[1].writers.catch_up()
        second()
    with open(path, newline="") as file:
        assert [row["epoch"] for row in csv.DictReader(file)] == [str(epoch) for epoch in range(EPOCHS)]


def test_hooks_are_those_of_the_callback_again_after_the_loop():
    callback = RemoteMonitor([], 0)
    writers = Writers([callback], SimpleNamespace(placement=SimpleNamespace(is_chief=False)))
    with writers.installed():
        callback.on_epoch_end(0)
        assert callback.written == []
    callback.on_epoch_end(0)
    assert callback.written == ["epoch 0"]


def test_the_chief_is_quiet_while_a_newcomer_passes_over_steps():
    written: list[str] = []
    worker = Worker(0, RemoteMonitor(written, 0), goes_on=True)
    worker.writers.is_muted = True
    calls = list(worker.calls)
    for call in calls[:-1]:
        call()
    assert written == []
    worker.writers.is_muted = False
    calls[-1]()
    assert written[-1] == "end"
