"""One worker of the job that `elastic.py --fit` disturbs: `Model.fit`.

    elastic_fit_job.py FOLDER PAUSE_S

A metric counts the rows, so that the log of each step tells which the model has seen. It ends as `elastic_job.py` does.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np

from replicax.group.membership.launcher_news import elastic_range
from tests.soak import elastic_training
from tests.soak.elastic_job import make_strategy, present
from tests.soak.elastic_training import ROWS, STEPS_PER_PASS, RowLog, last_step

_EPOCHS = 10_000  # The file `target` ends it before.


class RowCounts(keras.metrics.Metric):
    """Counts how often each row was seen in this epoch; the row's id is the last column of its target."""

    def __init__(self) -> None:
        super().__init__(name="rows")
        self.counts = self.add_weight(shape=(ROWS,), initializer="zeros", name="counts")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Counts the rows of a batch."""
        ids = keras.ops.cast(y_true[:, -1], "int32")
        self.counts.assign_add(keras.ops.sum(keras.ops.one_hot(ids, ROWS), axis=0))

    def result(self) -> Any:
        """Returns the number of rows of this epoch."""
        return keras.ops.sum(self.counts)


class Log(keras.callbacks.Callback):
    """Logs each step, and ends the training after the last one.

    Args:
        folder: Where the logs are.
        rows: The metric that counts them.
        pause_s: How long to wait after each step, in seconds.
    """

    def __init__(self, folder: Path, rows: RowCounts, pause_s: float):
        super().__init__()
        self._folder, self._rows, self._pause_s = folder, rows, pause_s
        self._log = RowLog(folder, present()[2])
        self._before: np.ndarray | None = None
        self._done = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        done, counts = int(np.asarray(self.model.optimizer.iterations)), np.asarray(self._rows.counts)
        if done == self._done:  # In a newcomer `fit` passes over the steps of the epoch that the others have made.
            return
        self._done = done
        before = np.zeros(ROWS) if (done - 1) % STEPS_PER_PASS == 0 else self._before
        self._before = counts
        if before is not None:  # A newcomer does not know what had been counted before its first step.
            number, members, _ = present()
            rows = np.repeat(np.arange(ROWS), (counts - before).astype(int))
            self._log.write(done - 1, number, members, [], rows.tolist())
        last = last_step(self._folder)
        if last is not None and done >= last:
            self.model.stop_training = True
        time.sleep(self._pause_s)


def loss(y_true: Any, y_pred: Any) -> Any:
    """Returns the squared error of the targets without the ids."""
    return keras.ops.sum((y_pred - y_true[:, :-1]) ** 2, axis=-1)


def main(folder: Path, pause_s: float) -> None:
    strategy = make_strategy(elastic_range())
    with strategy.scope():
        rows = RowCounts()
        model = elastic_training.make_model()
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss, metrics=[rows])
    dataset = strategy.distribute_dataset(elastic_training.batches_for_fit)
    model.fit(dataset, epochs=_EPOCHS, callbacks=[Log(folder, rows, pause_s)], verbose=0)
    done = int(np.asarray(model.optimizer.iterations))
    variables = model.variables, model.optimizer.variables
    elastic_training.keep_result(folder / f"result-{present()[2]}.npz", *variables, rows.counts, done)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
