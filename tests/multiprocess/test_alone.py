"""A worker that does alone what all do together is never paired with what another does later."""

from __future__ import annotations

import os
import re
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np
import pytest

import replicax as rx
from replicax.errors import CheckpointError, WorkersDisagreeError
from tests.multiprocess.test_sharded import fully_sharded, keras_model, problem
from tests.multiprocess.workers import run_workers

pytestmark = pytest.mark.multiprocess
STEPS = 2


def worker(folder: str) -> dict[str, Any]:
    """Lets the chief act after two steps and the other after four; returns what both raise, and what they have then."""
    strategy = fully_sharded()
    with strategy.scope():
        model, optimizer = keras_model(), keras.optimizers.SGD(0.01)
        optimizer.build(model.trainable_variables)
    checkpoint = rx.Checkpoint(model=model)
    (batch,) = strategy.distribute_dataset([problem(16)])

    def step(x: Any, y: Any) -> None:
        def loss() -> Any:
            return rx.compute_average_loss(keras.losses.mean_squared_error(y, model(x)))

        _, gradients = rx.value_and_grad(loss, model.trainable_variables)()
        optimizer.apply(gradients, model.trainable_variables)

    def train(steps: int) -> None:
        for _ in range(steps):
            strategy.run(step, args=batch)

    acts = {
        "read": lambda: model.weights[0].numpy(),
        "save": lambda: model.save_weights(f"{folder}/alone.weights.h5"),
        "checkpoint": lambda: checkpoint.write(f"{folder}/alone"),
    }
    raised = {}
    for name, act in acts.items():
        train(STEPS if strategy.is_chief else 2 * STEPS)
        with pytest.raises((WorkersDisagreeError, CheckpointError)) as error:
            act()
        raised[name] = str(error.value)
        train(STEPS if strategy.is_chief else 0)  # Nothing has moved, so it can catch up.
    saved = f"{folder}/together.weights.h5"
    model.save_weights(saved)
    return {"raised": raised, "weights": [each.tolist() for each in model.get_weights()], "left": os.listdir(folder)}


@pytest.mark.nightly
def test_one_that_acts_alone_is_not_paired_with_a_later_step(tmp_path):
    results = run_workers(worker, 2, 4, folder=str(tmp_path))
    for result in results:
        for name, word in (("read", "/kernel' float32[6,16], "), ("save", "save together"), ("checkpoint", "together")):
            said = result["raised"][name]
            chief, other = map(int, re.findall(r"(\d+) steps and other calls", said))
            assert word in said
            assert other == chief + STEPS
        assert result["left"] == ["together.weights.h5"]
    assert results[0] == results[1]
    assert all(np.isfinite(each).all() for each in results[0]["weights"])
