"""A two-worker training whose script handles the loss of a worker."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np

os.environ["KERAS_BACKEND"] = "jax"


def train(kind: str, seconds: float, stall_timeout: float, steps: int) -> None:
    """One worker. It trains until the other one is lost, and prints what its script is told of it.

    Args:
        kind: How it comes to wait for the other: `"read"` reads each loss, `"call"` reads none, `"fit"` uses Keras,
            `"agree"` creates variables, `"uncaught"` reads each loss and catches nothing; with
            `"kill"` worker 1 kills itself after three steps.
        seconds: How long its `finally` block takes.
        stall_timeout: That of the strategy.
        steps: Number of steps.
    """
    import jax.numpy as jnp

    import replicax as rx

    strategy = rx.MultiWorkerMirroredStrategy(start_timeout=60, stall_timeout=stall_timeout)
    with strategy.scope():
        w = rx.Variable(jnp.zeros(3))

    @rx.function
    def step(batch: Any) -> Any:
        def replica(x: Any) -> Any:
            w.assign_add(rx.get_replica_context().all_reduce("sum", x.sum(0)))
            return x.sum()

        return strategy.reduce("sum", strategy.run(replica, args=(batch,)), axis=None)

    last: list[Any] = []

    def go() -> None:
        dataset = strategy.distribute_dataset([np.ones((4, 3), np.float32)] * 20)
        for number in range(steps):
            print(f"step {number}", flush=True)
            if kind == "kill" and number == 3 and strategy.worker_index == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            for batch in dataset:
                last[:] = [batch]
                loss = step(batch)
                if kind != "call":
                    float(loss)
                time.sleep(0.01)
            if kind == "agree":
                with strategy.scope():
                    rx.Variable(float(number))

    try:
        if kind == "fit":
            _fit(strategy, steps)
        else:
            go()
    except rx.errors.WorkerLostError as error:
        print(f"caught {error.exit_code} {error.workers} {str(error).splitlines()[0]}", flush=True)
        if kind == "uncaught":
            raise
        if last:
            try:
                step(*last)
            except rx.errors.WorkerLostError:
                print("caught again", flush=True)
    finally:
        time.sleep(seconds)
        print("finally", flush=True)


def _fit(strategy: Any, steps: int) -> None:
    import keras

    class Callback(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            time.sleep(0.01)
            print(f"step {batch}", flush=True)

    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
        model.compile("sgd", "mse")
    x, y = np.ones((4000, 4), np.float32), np.ones((4000, 3), np.float32)
    model.fit(x, y, batch_size=4, epochs=steps, callbacks=[Callback()], verbose=0)
