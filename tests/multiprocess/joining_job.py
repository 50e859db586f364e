"""A script for `replicax run --elastic`: a custom loop whose workers fail in one of several ways, and join again.

    python joining_job.py FOLDER [INDEX:FAULT:NUMBER ...]

A worker of this index (`any`: the first one of all) has a fault once, when it has come to a place for that time:

- `step`: it is killed after so many steps.
- `fails`: its program fails when those of the others have completed it.
- `gives`: it is killed in the middle of giving its state to a newcomer.
- `takes`: it is killed, as a newcomer, in the middle of taking that state.
- `writes`: it is killed in the middle of writing a checkpoint.

From step `WAITS_AT` on there are all workers again.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import jax.numpy as jnp
import keras
import numpy as np

import replicax as rx
from replicax.contracts.group import current_group

BATCH, ROWS, STEPS, WAITS_AT, WORKERS = 12, 90, 40, 30, 3  # The last batch of a pass has 6 rows.
_SECONDS_TO_WAIT = 240


def rows() -> tuple[np.ndarray, np.ndarray]:
    """Returns features and targets."""
    x = np.random.default_rng(0).normal(size=(ROWS, 8)).astype(np.float32)
    return x, x.sum(1, keepdims=True)


def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the batches of a pass."""
    x, y = rows()
    for start in range(0, ROWS, BATCH):
        yield x[start : start + BATCH], y[start : start + BATCH]


class Training:
    """The model, and all that is trained and counted with it.

    Args:
        strategy: The strategy.
    """

    def __init__(self, strategy: Any):
        keras.utils.set_random_seed(1)
        self.strategy = strategy
        with strategy.scope():
            self.model = keras.Sequential(
                [
                    keras.Input((8,)),
                    keras.layers.Dense(16, "tanh"),
                    rx.keras.BatchNormalization(),  # over the global batch
                    keras.layers.Dropout(0.3),
                    keras.layers.Dense(1),
                ]
            )
            self.optimizer = keras.optimizers.Adam(0.01)  # It is built in the first step.
            self.metric = keras.metrics.MeanSquaredError()
            self.steps = rx.Variable(0, name="steps")
            self.seen = rx.Variable(0.0, synchronization="on_read", aggregation="sum", name="seen")
        self.dataset = strategy.distribute_dataset(batches)
        self._train = rx.function(self._all_replicas)
        self._count = rx.function(lambda: self.steps.assign_add(1))  # A program that needs nobody else.
        self.losses: list[float] = []

    def _replica(self, batch: tuple[Any, Any]) -> Any:
        x, y = batch

        def loss_fn() -> Any:
            predicted = self.model(x, training=True)
            self.metric.update_state(y, predicted)
            return rx.compute_average_loss(jnp.mean((predicted - y) ** 2, axis=-1), global_batch_size=BATCH)

        loss, gradients = rx.value_and_grad(loss_fn, self.model.trainable_variables)()
        self.optimizer.apply(gradients, self.model.trainable_variables)
        self.seen.assign_add(float(x.shape[0]))
        return loss

    def _all_replicas(self, batch: Any) -> Any:
        return self.strategy.reduce("sum", self.strategy.run(self._replica, args=(batch,)), axis=None)

    def checkpoint(self) -> rx.Checkpoint:
        """Returns what newcomers get, and what is saved."""
        parts = {"model": self.model, "optimizer": self.optimizer, "metric": self.metric, "dataset": self.dataset}
        return rx.Checkpoint(**parts, steps=self.steps, seen=self.seen)

    def steps_made(self) -> int:
        """Returns how many steps have been made."""
        return int(self.steps.numpy())

    def run(self, after_step: Callable[[int], None] = lambda step: None) -> dict[str, np.ndarray]:
        """Trains up to the last step, and returns all that can be compared."""
        while self.steps_made() < STEPS:
            for batch in self.dataset:
                self.losses.append(float(self._train(batch)))
                self._count()
                after_step(self.steps_made())
                if self.steps_made() == STEPS:
                    break
        return {
            **{f"variable {i}": np.asarray(each) for i, each in enumerate(self.model.variables)},
            **{f"slot {i}": np.asarray(each) for i, each in enumerate(self.optimizer.variables)},
            "metric": np.asarray(self.metric.result()),
            "seen": self.seen.numpy(),
            "last losses": np.asarray(self.losses[WAITS_AT - STEPS :]),
        }


def undisturbed() -> dict[str, np.ndarray]:
    """Returns what one process without any cluster finds."""
    return Training(rx.OneDeviceStrategy("cpu:0")).run()


class Faults:
    """Strikes this process where the arguments say.

    Args:
        folder: Where it is noted that a fault has struck.
        faults: All of them.
        index: The index of this worker.
    """

    def __init__(self, folder: Path, faults: Sequence[str], index: int):
        own = [fault.split(":") for fault in faults]
        self._times = {kind: (who, int(number)) for who, kind, number in own if who in ("any", str(index))}
        self._marks = folder
        self._counts: dict[str, int] = {}

    def is_due(self, kind: str) -> bool:
        """Returns whether a fault strikes now, the first time that it has come to its place so often."""
        self._counts[kind] = self._counts.get(kind, 0) + 1
        who, time_of_it = self._times.get(kind, ("", 0))
        if time_of_it != self._counts[kind]:
            return False
        try:
            (self._marks / f"{who}-{kind}").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def strike(self, kind: str) -> None:
        """Kills this process if the fault strikes now."""
        if self.is_due(kind):
            os.kill(os.getpid(), signal.SIGKILL)

    def plant(self) -> None:
        """Lets the functions of replicax fail where faults strike."""
        import replicax.checkpoint.elastic_save as elastic_save
        from replicax.program.compiled_pass import CompiledPass
        from replicax.strategies.elastic_variables import Followers

        ran, give, take, write = CompiledPass._ran, Followers.given, Followers.take, elastic_save.save_files

        def failing(own: Any, arrays: Any) -> Any:
            outputs = ran(own, arrays)
            if self.is_due("fails"):
                raise RuntimeError("Gloo all-reduce failed: planted after all have completed it")
            return outputs

        def giving(own: Any, *args: Any) -> Any:
            self.strike("gives")
            return give(own, *args)

        def taking(own: Any, *args: Any) -> Any:
            self.strike("takes")
            return take(own, *args)

        def writing(target: Any, *args: Any, **kwargs: Any) -> Any:
            target.write("half", b"half")
            self.strike("writes")
            (target.place / "half").unlink()
            return write(target, *args, **kwargs)

        for owner, name, function in (
            (CompiledPass, "_ran", failing),
            (Followers, "given", giving),
            (Followers, "take", taking),
            (elastic_save, "save_files", writing),
        ):
            setattr(owner, name, function)


def wait_for_all(strategy: Any) -> None:
    """Lets newcomers in until all workers are there; each of the others calls it at the same step."""
    group = current_group()
    deadline = time.monotonic() + _SECONDS_TO_WAIT
    while group.may_change and len(group.members) < WORKERS:
        assert time.monotonic() < deadline, f"only {group.world} after {_SECONDS_TO_WAIT} s"
        strategy.join()
        time.sleep(0.05)


def main(folder: Path, faults: Sequence[str]) -> None:
    strategy = rx.MultiWorkerMirroredStrategy()
    index = strategy.cluster.process_id
    struck = Faults(folder, faults, index)
    struck.plant()
    training = Training(strategy)
    manager = rx.CheckpointManager(folder / "checkpoints", checkpoint=training.checkpoint(), save_interval_steps=4)
    began = manager.restore_or_initialize()
    assert began in (None, training.steps_made()), (began, training.steps_made())

    def after_step(step: int) -> None:
        manager.save(step)
        struck.strike("step")
        if step >= WAITS_AT:  # A newcomer that dies while it takes was a member for a moment.
            wait_for_all(strategy)

    found = training.run(after_step)
    manager.close()
    np.savez(folder / f"worker-{index}.npz", **found)
    print(f"worker {index} is done, in {current_group().world}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
