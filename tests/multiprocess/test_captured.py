"""Values of several workers that a function has captured or makes: no process can read all of such an array."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ProgramError
from tests.multiprocess.workers import run_workers

pytestmark = pytest.mark.multiprocess


def error_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except ProgramError as error:
        return str(error)
    return "none"


def made_in_a_step(strategy: rx.MultiWorkerMirroredStrategy) -> list[float]:
    """Makes variables with first values of one worker each, small and large, while a step is traced."""
    found: dict[str, rx.Variable] = {}

    @rx.function
    def step() -> None:
        for name, shape in (("small", (2,)), ("large", (300, 200)), ("empty", (0, 3))):
            if name not in found:
                found[name] = rx.Variable(np.full(shape, strategy.worker_index + 5.0, np.float32), name=name)

    with strategy.scope():
        step()
    return [float(np.asarray(variable).max(initial=5.0)) for variable in found.values()]


def worker() -> dict[str, Any]:
    strategy = rx.MultiWorkerMirroredStrategy(start_timeout=60)
    values = strategy.distribute_values_from_function(lambda c: jnp.float32(c.replica_id_in_sync_group + 1))
    scale = strategy.replicate(np.float32(2.0))
    captured = {
        "by a step": lambda: strategy.run(lambda: values * 2),
        "by a step in a function": rx.function(lambda: strategy.run(lambda: values * 2)),
        "by a function": rx.function(lambda: strategy.reduce("sum", values)),
        "and returned": rx.function(lambda: values),
    }
    made = rx.function(
        lambda: strategy.distribute_values_from_function(lambda c: jnp.float32(10 * c.replica_id_in_sync_group))
    )()
    passed = rx.function(lambda values, scale: strategy.reduce("sum", strategy.run(lambda x: x * scale, (values,))))
    return {
        "errors": {name: error_of(call) for name, call in captured.items()},
        "made": [float(value) for value in strategy.local_results(made)],
        "passed": float(passed(values, scale)),
        "replicated": float(rx.function(lambda: strategy.run(lambda: scale + 1.0))()),
        "in a step": made_in_a_step(strategy),
    }


def test_what_is_captured_must_be_passed_and_values_may_be_made_inside():
    for number, found in enumerate(run_workers(worker, workers=2, devices=2)):
        for name, error in found["errors"].items():
            assert "Pass it as an argument: f(value)" in error, name
        assert found["made"] == [20.0 * number, 20.0 * number + 10.0]
        assert found["passed"] == 20.0
        assert found["replicated"] == 3.0
        assert found["in a step"] == [5.0, 5.0, 5.0]
