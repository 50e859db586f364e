"""One worker of the job that `elastic.py` disturbs: a loop of its own around `strategy.run`.

    elastic_job.py FOLDER PAUSE_S

It logs which rows each call has computed, and ends after the step that the file `target` names. Without a launcher it
is the undisturbed training on one device.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

import replicax as rx
from replicax.group.membership.launcher_news import ElasticRange, elastic_range
from tests.soak import elastic_training
from tests.soak.elastic_training import BATCH, ROWS, STEPS_PER_PASS, RowLog, last_step, rows_of


class Training:
    """The model, a step, and the data.

    Args:
        strategy: Where.
    """

    def __init__(self, strategy: Any):
        self.strategy = strategy
        with strategy.scope():
            self.model = elastic_training.make_model()
            self.optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
            self.optimizer.build(self.model.trainable_variables)
            self.counts = rx.Variable(np.zeros(ROWS, np.int32), name="counts")
            self.step = rx.Variable(0, name="step")
        self.number = 0  # that of the pass
        self.dataset = strategy.distribute_dataset(lambda: elastic_training.batches(self.number))
        self.checkpoint = rx.Checkpoint(
            {
                "model": self.model,
                "optimizer": self.optimizer,
                "counts": self.counts,
                "step": self.step,
                "data": self.dataset,
            }
        )
        self.call = rx.function(lambda batch: strategy.run(self._step, args=(batch,)))

    def _step(self, batch: Any) -> Any:
        x, y, ids = batch

        def loss_fn() -> Any:
            losses = jnp.sum((self.model(x, training=True) - y) ** 2, axis=-1)
            loss = rx.compute_average_loss(losses, global_batch_size=BATCH)
            return loss + rx.scale_regularization_loss(sum(self.model.losses))

        _, gradients = rx.value_and_grad(loss_fn, self.model.trainable_variables)()
        self.optimizer.apply(gradients, self.model.trainable_variables)
        mine = jnp.zeros(ROWS, jnp.int32).at[ids].add(1)
        replica = rx.get_replica_context()
        self.counts.assign_add(replica.all_reduce("sum", mine))
        self.step.assign_add(1)
        return ids, replica.all_gather(ids, axis=0)


def present() -> tuple[int, tuple[int, ...], int]:
    """Returns the number and the members of the present world, and which of them this worker is."""
    if elastic_range() is None:
        return 0, (0,), 0
    from replicax.contracts.group import current_group

    world = current_group().world
    return world.number, tuple(world.members), world.members[world.index]


def make_strategy(elastic: ElasticRange | None) -> Any:
    """Returns the strategy of a worker; without a range that of the undisturbed training."""
    if elastic is None:
        return rx.MultiWorkerMirroredStrategy(random_numbers="per_row")  # As in the elastic job.
    whole = rx.Elastic(min_workers=elastic.fewest, max_workers=elastic.most)
    return rx.MultiWorkerMirroredStrategy(elastic=whole, start_timeout=120)


def main(folder: Path, pause_s: float) -> None:
    elastic = elastic_range()
    strategy = make_strategy(elastic)
    training = Training(strategy)
    if elastic is not None:
        strategy.join(training.checkpoint)
    log, done, last = RowLog(folder, present()[2]), int(training.step.numpy()), last_step(folder)
    while last is None or done < last:
        training.number = done // STEPS_PER_PASS
        for batch in training.dataset:
            ids, rows = training.call(batch)
            # A result taken over from a world of another size has the components of all: the own rows are unknown.
            local = strategy.experimental_local_results(ids)
            own = local[0] if len(local) == 1 else []
            rows = strategy.experimental_local_results(rows)[0]
            total = strategy.reduce("sum", ids, axis=0)  # A call of its own, of a value that may be of an old world.
            if int(np.asarray(total)) != int(np.sum(rows_of(done))):
                raise AssertionError(f"The ids of step {done} sum up to {total} in {present()}, not {rows_of(done)}.")
            number, members, _ = present()
            done = int(training.step.numpy())
            log.write(done - 1, number, members, np.asarray(own).tolist(), np.asarray(rows).tolist())
            last = last_step(folder)
            if last is not None and done >= last:
                break
            time.sleep(pause_s)
    counts = np.asarray(jax.device_get(training.counts.numpy()))
    variables = training.model.variables, training.optimizer.variables
    elastic_training.keep_result(folder / f"result-{present()[2]}.npz", *variables, counts, done)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
