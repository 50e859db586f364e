"""The comparison finds a port that is wrong, and one that shows nothing."""

from __future__ import annotations

from pathlib import Path

from tests.outside.cases import TOLERANCE
from tests.outside.comparing import Comparison, compare_here

PROGRAM = """
import jax
import jax.numpy as jnp
import numpy as np

import replicax as rx  # +

strategy = rx.MirroredStrategy()  # +


def step(w, x):
    loss, gradient = jax.value_and_grad(lambda w: jnp.sum(jnp.square(x @ w - 1)) / DIVISOR)(w)
    return w - 0.01 * gradient, loss


def main():
    w, losses = jnp.zeros(4), []
    batches = [np.random.default_rng(i).normal(size=(16, 4)).astype("float32") for i in range(5)]
    # - for batch in batches:
    for batch in strategy.distribute_dataset(batches):  # +
        # - w, loss = step(w, batch)
        w, loss = strategy.run(step, args=(w, batch))  # +
        loss = strategy.reduce("sum", loss, axis=None)  # +
        losses.append(loss)
    return w, losses
"""


def compared(folder: Path, divisor: str) -> Comparison:
    path = folder / "program.py"
    path.write_text(PROGRAM.replace("DIVISOR", divisor))
    return compare_here(path)


def test_a_right_port_is_equal(tmp_path: Path):
    assert compared(tmp_path, "16").is_equal(TOLERANCE)


def test_a_loss_divided_by_the_rows_of_a_replica_is_found(tmp_path: Path):
    found = compared(tmp_path, "len(x)")
    assert found.parameters > 0.1
    assert not found.is_equal(TOLERANCE)


def test_a_program_that_learns_nothing_shows_nothing():
    assert not Comparison(parameters=0.0, losses=0.0, learned=0.0).is_equal(TOLERANCE)
