"""What workers of the multi-process tests of islands run."""

from __future__ import annotations

import numpy as np


def train_alone_and_together(every: int) -> dict[str, object]:
    """Trains a linear model by local SGD; returns what came of it, and the bytes of the exchanges and of a step."""
    import replicax as rx
    from tests.islands.test_strategy import BATCHES, Training

    strategy = rx.LocalSGDStrategy(every)
    training = Training(strategy).fit(BATCHES)
    strategy.synchronize()
    return {
        "values": [np.asarray(value).tolist() for value in training.values()],
        "rows": float(training.rows.numpy()),
        "islands": strategy.num_islands,
        "index": strategy.island_index,
    }
