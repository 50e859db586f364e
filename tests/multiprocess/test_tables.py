"""Tables over two processes are those of one device."""

from __future__ import annotations

import os
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import numpy as np
import pytest

import replicax as rx
from tests.multiprocess.workers import run_workers
from tests.tables import problem

pytestmark = pytest.mark.multiprocess


def worker(how: str) -> dict[str, Any]:
    data = problem.batches("weighted", problem.spread_ids)[:2]
    strategy = rx.MultiWorkerMirroredStrategy(start_timeout=60)
    found = problem.trained(strategy, how, "adagrad", "mean", data)
    return {name: value.tolist() for name, value in found.items()}


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["fit", "run"])
def test_training_is_that_of_keras_rs(how: str):
    wanted = problem.by_keras_rs("adagrad", "mean", problem.batches("weighted", problem.spread_ids)[:2])
    for found in run_workers(worker, 2, 2, how=how):
        for name, value in wanted.items():
            np.testing.assert_allclose(np.asarray(found[name]), value, rtol=1e-6, atol=1e-6, err_msg=name)
