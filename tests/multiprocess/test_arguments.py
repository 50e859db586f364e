"""Numbers, settings and NumPy arrays that workers pass to a step are equal, or the first call is an error."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ArgumentMismatchError
from tests.multiprocess.workers import run_workers

pytestmark = pytest.mark.multiprocess


def worker() -> dict[str, Any]:
    strategy = rx.MultiWorkerMirroredStrategy(start_timeout=60)
    index = strategy.worker_index
    with strategy.scope():
        w = rx.Variable(jnp.zeros(3), name="w")

    def step(x: Any, learning_rate: Any = 0.1, *, offset: Any = 0.0, training: bool = True) -> None:
        mean = rx.get_replica_context().all_reduce("mean", x if training else 2 * x)
        w.assign_sub(learning_rate * mean + offset)

    own = strategy.distribute_values_from_function(lambda c: np.full(3, c.replica_id_in_sync_group, np.float32))
    calls = {
        "number": lambda: strategy.run(step, (own, 0.1 * index)),
        "array": lambda: strategy.run(step, (own,), {"offset": np.arange(3, dtype=np.float32) + index}),
        "flag": lambda: strategy.run(step, (own,), {"training": index == 0}),
        "function": lambda: rx.function(lambda x, rate: strategy.run(step, (x, rate)))(own, 1 + index),
    }
    told: dict[str, Any] = {}
    for name, call in calls.items():
        with pytest.raises(ArgumentMismatchError) as raised:
            call()
        told[name] = [raised.value.function, raised.value.argument, raised.value.value, raised.value.other_value]
    unchanged = w.numpy().tolist()
    # What is equal, what each replica has of its own, and a function that is no step.
    for rate in (0.5, 0.25):
        strategy.run(step, (own, rate), {"offset": np.float32(0)})
    looked = float(rx.function(lambda x: jnp.sum(x) + jnp.sum(w.value))(np.full(3, index, np.float32)))
    return {"told": told, "unchanged": unchanged, "trained": w.numpy().tolist(), "looked": looked}


def test_an_argument_that_differs_between_workers_is_named_before_the_step_runs():
    for number, found in enumerate(run_workers(worker, workers=2)):
        mine, other = number, 1 - number

        def offsets(i: int) -> str:
            return f"float32(3,) [{i}.0, {i + 1}.0, {i + 2}.0]"

        assert found["told"] == {
            "number": ["step", "learning_rate", f"{0.1 * mine}", f"{0.1 * other}"],
            "array": ["step", "offset", offsets(mine), offsets(other)],
            "flag": ["step", "training", f"{mine == 0}", f"{other == 0}"],
            "function": ["<lambda>", "rate", f"{1 + mine}", f"{1 + other}"],
        }
        assert found["unchanged"] == [0.0, 0.0, 0.0]
        np.testing.assert_allclose(found["trained"], [-0.375] * 3, rtol=1e-6)
        assert found["looked"] == pytest.approx(-1.125 + 3 * number)
