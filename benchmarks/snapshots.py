"""Measures what snapshots in memory cost: steps with and without them, in turns.

    python benchmarks/snapshots.py [--rounds 10] [--seconds 6]

It runs itself as two workers under `replicax run --restarts 1`, which keeps memory for snapshots: the network of the
MNIST example (0.4 million parameters, with Adam) in a custom loop that calls `save` after each step. A turn is several
seconds long, since snapshots are: `snapshot_cost` is the ratio of the mean times of a step.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time


def launch() -> int:
    from benchmarks.restart import own_weight

    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "replicax", "run", "--workers", "2", "--restarts", "1"]
        command += ["--log-dir", folder, __file__, "--folder", folder, *sys.argv[1:]]
        environment = {**os.environ, "BENCHMARK_WEIGHT": own_weight()}
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=environment)
    for line in done.stdout.splitlines():
        print(line.removeprefix("[worker 0] "))
    return done.returncode


def measure(folder: str, rounds: int, seconds: float) -> None:
    os.environ.setdefault("KERAS_BACKEND", "jax")
    from benchmarks.restart_job import ROWS, digits, mlp  # isort: skip  # It asks for the weight of the session.
    import keras

    import replicax as rx

    strategy = rx.MultiWorkerMirroredStrategy()
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model, optimizer = mlp(), keras.optimizers.Adam(1e-3)
        optimizer.build(model.trainable_variables)
    losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)

    def train_step(batch):
        def loss_fn():
            return rx.compute_average_loss(losses(batch[1], model(batch[0])), global_batch_size=ROWS)

        loss, gradients = rx.value_and_grad(loss_fn, model.trainable_variables)()
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @rx.function
    def step(batch):
        return strategy.reduce("sum", strategy.run(train_step, args=(batch,)), axis=None)

    x, y = digits()
    batches = list(strategy.distribute_dataset((x[: 4 * ROWS], y[: 4 * ROWS]), batch_size=ROWS))
    objects = {"model": model, "optimizer": optimizer}
    managers = {}
    for takes in (True, False):
        managers[takes] = rx.CheckpointManager(
            os.path.join(folder, str(takes)), objects=objects, save_interval_steps=10**9
        )
        os.environ["REPLICAX_SNAPSHOTS"] = "0"
    number = 0

    def turn(takes: bool, steps: int) -> float:
        """Makes steps; returns how long that took."""
        nonlocal number
        begun, last = time.perf_counter(), number + steps
        while number < last:
            for batch in batches:
                float(step(batch))
                number += 1
                managers[takes].save(number)
        return time.perf_counter() - begun

    from replicax.cluster.exchange import exchanged  # All workers make as many steps.

    turn(False, 100)
    per_step = max(float(each) for each in exchanged(str(turn(False, 100) / 100).encode()))
    count = len(batches) * round(seconds / per_step / len(batches))
    turn(True, count)
    totals = {True: 0.0, False: 0.0}
    for _ in range(rounds):
        for takes in (True, False):
            totals[takes] += turn(takes, count)
    if strategy.is_chief:
        with_, without = (1e3 * totals[takes] / rounds / count for takes in (True, False))
        print(f"a step takes {with_:.3f} ms with snapshots, {without:.3f} ms without")
        print(f"RESULT snapshot_cost {with_ / without:.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--folder")
    args = parser.parse_args()
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if args.folder is None:
        sys.exit(launch())
    measure(args.folder, args.rounds, args.seconds)
