"""The script that `endings.py` starts: `endings_job.py WRITER ENDING FOLDER`.

It writes, leaves what it writes last to the background where there is one, notes what must be there, and ends.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import jax
import numpy as np

import replicax as rx
from replicax.checkpoint import writing

SLOW_S = 0.7  # A save takes so long, so that the ending comes meanwhile.
STEPS = 3
SHAPE = (16, 8)

_save_files = writing.save_files


def slow(*arguments: Any) -> Any:
    """Writes the arrays of a checkpoint, and takes its time."""
    time.sleep(SLOW_S)
    return _save_files(*arguments)


def full(*arguments: Any) -> None:
    """Is a disk that fills up."""
    del arguments
    time.sleep(SLOW_S)
    raise OSError(28, "No space left on device")


def promise(folder: Path, **what: Any) -> None:
    """Notes what must be there when the script has ended."""
    if jax.process_index() == 0:
        (folder / "promised.json").write_text(json.dumps(what))


def strategy_of_job() -> Any:
    """Returns the strategy of the workers; None in a process that is alone."""
    return rx.MultiWorkerMirroredStrategy(start_timeout=100) if "TF_CONFIG" in os.environ else None


def variable(strategy: Any) -> Any:
    """Returns a variable."""
    if strategy is None:
        return rx.Variable(np.zeros(SHAPE, np.float32))
    with strategy.scope():
        return rx.Variable(np.zeros(SHAPE, np.float32))


def train(manager: Any, w: Any, folder: Path, steps: int = STEPS) -> None:
    """Saves at each step; the last save is slow."""
    for step in range(1, steps + 1):
        w.assign(np.full(SHAPE, step, np.float32))
        if step == steps:
            manager.wait_until_finished()
            writing.save_files = slow
        manager.save(step)
    promise(folder, steps=list(range(1, steps + 1)), last=steps)


# The writers: each returns what is done at last instead of the ending, or None.


def manager(folder: Path) -> None:
    """A manager, as scripts use it."""
    w = variable(strategy_of_job())
    train(rx.CheckpointManager(folder / "saved", objects={"w": w}), w, folder)


def elastic(folder: Path) -> None:
    """A manager where workers come and go."""
    strategy = rx.MultiWorkerMirroredStrategy(start_timeout=100, elastic=rx.Elastic(1))
    w = variable(strategy)
    kept = rx.CheckpointManager(folder / "saved", objects={"w": w})
    for step in range(1, STEPS + 1):
        w.assign(np.full(SHAPE, step, np.float32))
        kept.save(step)
    promise(folder, steps=[1, 2, 3], last=STEPS)


def full_disk(folder: Path) -> None:
    """A manager whose last save fails: it must be said."""
    w = variable(strategy_of_job())
    kept = rx.CheckpointManager(folder / "saved", objects={"w": w})
    kept.save(1)
    kept.wait_until_finished()
    writing.save_files = full
    kept.save(STEPS)
    promise(folder, steps=[1], fails=f"{STEPS:08d}")


def checkpoint(folder: Path) -> None:
    """A checkpoint without a manager."""
    w = variable(strategy_of_job())
    saved = rx.Checkpoint(w=w)
    writing.save_files = slow
    for step in range(1, STEPS + 1):
        w.assign(np.full(SHAPE, step, np.float32))
        saved.write(folder / "saved" / f"{step:08d}")
    promise(folder, steps=[1, 2, 3], last=STEPS)


def thread(folder: Path) -> None:
    """A thread that trains and saves, while the main thread has ended."""
    w = variable(strategy_of_job())
    kept = rx.CheckpointManager(folder / "saved", objects={"w": w})
    begun = threading.Event()

    def run() -> None:
        w.assign(np.full(SHAPE, 1, np.float32))
        kept.save(1)
        begun.set()
        train(kept, w, folder)

    promise(folder, steps=[1, 2, 3], last=STEPS)
    threading.Thread(target=run).start()
    begun.wait()


def daemon(folder: Path) -> None:
    """A save that a daemon thread has begun."""
    w = variable(strategy_of_job())
    saved, begun = rx.Checkpoint(w=w), threading.Event()

    def signals(*arguments: Any) -> Any:
        begun.set()
        return slow(*arguments)

    def run() -> None:
        saved.write(folder / "saved" / "00000001")
        time.sleep(1000)

    writing.save_files = signals
    threading.Thread(target=run, daemon=True).start()
    begun.wait()
    promise(folder, steps=[1], last=0)


def preempted(folder: Path) -> Callable[[], None]:
    """A script that saves when it is told to go."""
    strategy = strategy_of_job()
    w = variable(strategy)
    kept = rx.CheckpointManager(folder / "saved", objects={"w": w}, save_interval_steps=10**6)
    handler = rx.PreemptionCheckpointHandler(strategy, kept)

    def step() -> None:
        w.assign_add(np.ones(SHAPE, np.float32))
        time.sleep(0.05)

    def go_on() -> None:
        writing.save_files = slow
        for _ in range(1000):
            handler.run(step)

    handler.run(step)
    promise(folder, newest=True)
    (folder / f"ready-{os.getpid()}").touch()
    return go_on


def export(folder: Path) -> None:
    """A thread that exports a function."""
    w = rx.Variable(np.full(SHAPE, 2.0, np.float32))
    exporting = threading.Event()

    def doubled(x: Any) -> Any:
        exporting.set()
        time.sleep(SLOW_S)
        return x * w

    promise(folder, exported=True)
    threading.Thread(target=rx.export, args=(doubled, folder / "exported", np.zeros(SHAPE, np.float32))).start()
    exporting.wait()


def csv(folder: Path) -> None:
    """A table that nobody closes."""
    log(rx.trackers.CSV(folder / "log.csv"), folder)


def event_files(folder: Path) -> None:
    """Event files that nobody closes."""
    log(rx.trackers.TensorBoard(folder / "events"), folder)


def event_files_full_disk(folder: Path) -> None:
    """Event files beside a save that fails."""
    log(rx.trackers.TensorBoard(folder / "events"), folder)
    full_disk(folder)
    promise(folder, steps=[1], fails=f"{STEPS:08d}", logged=list(range(20)))


def mlflow(folder: Path) -> None:
    """A run of MLflow that nobody closes."""
    log(rx.trackers.MLflow("endings", tracking_uri=f"file:{folder}/mlruns"), folder)


def wandb(folder: Path) -> None:
    """An offline run of Weights & Biases that nobody closes."""
    log(rx.trackers.WandB("endings", mode="offline", dir=str(folder)), folder)


def log(tracker: Any, folder: Path) -> None:
    """Logs twenty values."""
    strategy_of_job()
    for step in range(20):
        tracker.log({"loss": float(step)}, step)
    promise(folder, logged=list(range(20)))


def _compiled(strategy: Any) -> Any:
    import contextlib

    import keras

    with strategy.scope() if strategy is not None else contextlib.nullcontext():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        model.compile("adam", "mse")
    return model


def _fit(folder: Path, callbacks: list[Any], **promised: Any) -> Callable[[], None]:
    """Returns a `fit` in whose third epoch the ending comes, when two epochs are done."""
    import keras

    model = _compiled(strategy_of_job())
    x, y = np.ones((16, 4), np.float32), np.ones((16, 2), np.float32)

    class Ends(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if epoch == 0:
                writing.save_files = slow

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 2:
                promise(folder, **promised)
                end(folder, goes_on=True)
            time.sleep(0.05)

    return lambda: model.fit(x, y, batch_size=8, epochs=1000, verbose=0, callbacks=[*callbacks, Ends()])


def backup(folder: Path) -> Callable[[], None]:
    """BackupAndRestore, in a `fit` that is interrupted."""
    return _fit(folder, [rx.keras.BackupAndRestore(folder / "backup")], backups=2)


def keras_events(folder: Path) -> Callable[[], None]:
    """The callback TensorBoard, in a `fit` that is interrupted."""
    return _fit(folder, [rx.keras.TensorBoard(folder / "events")], epochs=2)


def estimator(folder: Path) -> Callable[[], None]:
    """An estimator that is interrupted behind a save."""
    import keras

    from replicax.estimator import Estimator, EstimatorSpec, RunConfig

    strategy = strategy_of_job()

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        outputs = keras.layers.Dense(2)(features)
        loss = keras.ops.mean(keras.ops.square(outputs - labels))
        return EstimatorSpec(mode, loss=loss, optimizer=keras.optimizers.SGD(0.01))

    class Ends(rx.estimator.Hook):
        def after_step(self, context: Any) -> None:
            if context.step == 3:
                writing.save_files = slow
            if context.step == 5:
                promise(folder, estimator=4)
                end(folder)

    def batches() -> Any:
        while True:
            yield np.ones((8, 4), np.float32), np.ones((8, 2), np.float32)

    config = RunConfig(model_dir=str(folder / "saved"), save_checkpoints_steps=4, train_distribute=strategy)
    made = Estimator(model_fn, config=config)
    return lambda: made.train(batches, max_steps=100, hooks=[Ends()])


def islands(folder: Path) -> None:
    """Islands, of which the first saves what comes of their last exchange."""
    strategy = rx.LocalSGDStrategy(every=3, start_timeout=100)
    with strategy.scope():
        w = rx.Variable(np.zeros(SHAPE, np.float32))
    added = np.full(SHAPE, 1.0 + strategy.island_index, np.float32)

    def add() -> None:
        w.assign_add(added)

    step = rx.function(lambda: strategy.run(add))
    for _ in range(3):
        step()
    w_saved = rx.Variable(np.array(w.numpy()))
    if strategy.island_index == 0:
        kept = rx.CheckpointManager(folder / "saved", objects={"w": w_saved})
        writing.save_files = slow
        kept.save(1)
        promise(folder, steps=[1], value=4.5 if strategy.num_islands == 2 else 3.0)


def snapshot(folder: Path) -> None:
    """A snapshot in memory that is being written; the next attempt goes on from it."""
    w = variable(strategy_of_job())
    kept = rx.CheckpointManager(folder / "saved", objects={"w": w}, save_interval_steps=10**6)
    done = kept.restore_or_initialize() or 0
    if int(os.environ.get("REPLICAX_ATTEMPT", "0")):
        promise(folder, restored=int(done), wanted=4)
        sys.exit(0)
    writing.save_files = slow
    for step in range(1, 5):  # The first calls take none, and the fourth takes one.
        w.assign(np.full(SHAPE, step, np.float32))
        kept.save(step)
    promise(folder, restored=0, wanted=4)


WRITERS: dict[str, Callable[[Path], Callable[[], Any] | None]] = {
    each.__name__: each
    for each in (
        *(manager, elastic, full_disk, checkpoint, thread, daemon, preempted, export, csv, event_files),
        *(event_files_full_disk, mlflow, wandb, backup, keras_events, estimator, islands, snapshot),
    )
}


def end(folder: Path, goes_on: bool = False) -> None:
    """Ends the script; what goes on does so until the signal has come."""
    ending = sys.argv[2]
    (folder / f"ready-{os.getpid()}").touch()
    if ending == "exception":
        raise RuntimeError("as the script is to end")
    if ending == "exit":
        sys.exit(3)
    if ending == "os_exit":
        time.sleep(SLOW_S / 2)  # A save that has written nothing yet leaves no trace.
        os._exit(0)
    while ending in ("sigterm", "sigint") and not goes_on:  # They come from outside.
        time.sleep(0.02)


def main() -> None:
    folder = Path(sys.argv[3])
    goes_on = WRITERS[sys.argv[1]](folder)
    if goes_on is None:
        end(folder)
    else:
        goes_on()


if __name__ == "__main__":
    main()
