"""What an optimizer may not do where rows of tables are updated beside it is refused, before anything changes."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import replicax as rx
from tests.tables import problem

SGD = keras.optimizers.SGD


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SGD(gradient_accumulation_steps=2), "gradient_accumulation_steps=2, but the rows"),
        (lambda: SGD(loss_scale_factor=8.0), r"SGD\(loss_scale_factor=8.0\), for which the loss is scaled"),
        (lambda: keras.optimizers.LossScaleOptimizer(SGD()), "LossScaleOptimizer, for which the loss is scaled"),
    ],
)
@pytest.mark.parametrize("how", ["fit", "run"])
def test_an_optimizer_for_which_the_gradients_of_rows_would_be_others_is_refused(make: Any, message: str, how: str):
    strategy = problem.mirrored(2)
    with strategy.scope():
        model = problem.Model(rx.keras.DistributedEmbedding(problem.configs("adam", "sum")))
        model.compile(optimizer=make(), loss="mse")
    inputs, _, targets = problem.batches("dense", problem.spread_ids)[0]
    given = model.layer.preprocess(inputs)
    model(given)
    before = [np.asarray(each) for each in model.layer.get_embedding_tables().values()]

    def train() -> None:
        if how == "fit":
            model.train_on_batch(given, targets)
        else:
            problem.in_loop(strategy, model, [(given, targets)])

    with pytest.raises(rx.errors.ArgumentError, match=message):
        train()
    for old, new in zip(before, model.layer.get_embedding_tables().values(), strict=True):
        np.testing.assert_array_equal(old, new)
