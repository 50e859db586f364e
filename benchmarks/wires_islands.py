"""A host's process with `rx.DiLoCoStrategy`, for `wires.py`: an island of one core."""

from __future__ import annotations

import os
import time
from typing import Any

import handwritten
import jax
import keras
import numpy as np
import wires_models as models
from wires_told import serve

import replicax as rx


class Island:
    """The custom loop: Keras's variables and Adam, whose state each island keeps for itself."""

    def __init__(self, strategy: rx.DiLoCoStrategy, sizes: tuple[int, ...]):
        rows = models.ROWS // strategy.num_islands  # As many as a host has of a batch in training in step.
        with strategy.scope():
            first, treedef = jax.tree.flatten(models.first_weights(sizes))
            self.weights = weights = [keras.Variable(value) for value in first]
            adam = keras.optimizers.Adam(models.LEARNING_RATE, epsilon=models.EPSILON)
            adam.build(weights)
        dealt = [(x[i : i + rows], y[i : i + rows]) for x, y in models.batches(sizes) for i in range(0, len(x), rows)]
        self.batches = list(strategy.distribute_dataset(dealt, rx.InputOptions(prefetch=0)))
        self.count = 0

        def train_step(batch: Any) -> Any:
            def loss_fn() -> Any:
                return handwritten.loss_sum(jax.tree.unflatten(treedef, [w.value for w in weights]), *batch) / rows

            loss, gradients = rx.value_and_grad(loss_fn, weights)()
            adam.apply_gradients(zip(gradients, weights, strict=True))
            return loss

        self.step = rx.function(
            lambda batch: strategy.reduce("sum", strategy.run(train_step, args=(batch,)), axis=None)
        )

    def __call__(self) -> Any:
        batch = self.batches[self.count % len(self.batches)]
        self.count += 1
        return self.step(batch)


def main() -> None:
    strategy = rx.DiLoCoStrategy(every=models.EVERY, start_timeout=60, elastic=os.environ["WIRES_ELASTIC"] == "1")
    islands: dict[str, Island] = {}

    def make(model: str) -> dict[str, Any]:
        islands[model] = Island(strategy, models.MODELS[model])
        return {}

    def run(model: str, steps: int) -> dict[str, Any]:
        """Makes whole rounds."""
        island = islands[model]
        begin = time.perf_counter()
        losses = [island() for _ in range(steps)]
        with strategy.own_values():
            values = jax.block_until_ready([weight.value for weight in island.weights])  # The exchange is in them.
        seconds = (time.perf_counter() - begin) / steps
        sums = [float(np.asarray(value, np.float64).sum()) for value in values]
        return {"seconds": seconds, "losses": [float(loss) for loss in losses], "sums": sums}

    serve({"make": make, "run": run})


if __name__ == "__main__":
    main()
