"""A script for `replicax run --elastic`: a custom loop that logs each step; worker 0 is killed in its first life."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

os.environ["KERAS_BACKEND"] = "jax"

import jax
import jax.numpy as jnp

import replicax as rx

STEPS, KILLED_AFTER, WAITS_AT, WORKERS = 12, 3, 8, 2
_SECONDS_TO_WAIT = 240


def main(folder: str) -> None:
    """Trains, and logs `loss = step ** 2`."""
    strategy = rx.MultiWorkerMirroredStrategy()
    with strategy.scope():
        steps = rx.Variable(0, name="steps")

    def replica() -> jax.Array:
        steps.assign_add(1)
        return jnp.float32(rx.get_replica_context().replica_id_in_sync_group)

    @rx.function
    def train_step() -> jax.Array:
        together = strategy.reduce("sum", strategy.run(replica), axis=None)  # All workers must be there.
        return jnp.square(jnp.float32(steps)) + 0 * together

    tracker = rx.trackers.CSV(Path(folder) / "log.csv")
    strategy.join(steps=steps)
    with tracker:
        while int(steps) < STEPS:
            tracker.log({"loss": train_step()}, int(steps))
            if int(steps) == KILLED_AFTER and strategy.is_chief and os.environ["REPLICAX_LIFE"] == "0":
                os.kill(os.getpid(), signal.SIGKILL)
            deadline = time.monotonic() + _SECONDS_TO_WAIT
            while int(steps) == WAITS_AT and strategy.num_workers < WORKERS:
                assert time.monotonic() < deadline, "the lost worker did not come again"
                strategy.join()
                time.sleep(0.1)
            strategy.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
