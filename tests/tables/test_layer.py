"""`rx.keras.DistributedEmbedding` computes what `keras_rs` computes on one device."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import replicax as rx
from tests.tables import problem

COMBINERS = ("sum", "mean", "sqrtn")
KINDS = ("dense", "ragged", "weighted")
#: Each optimizer, combiner, kind of input and number of replicas at least once.
SOME = [
    ("sgd", "mean", "dense", 8, "run"),
    ("adagrad", "sum", "weighted", 3, "fit"),
    ("adam", "sqrtn", "ragged", 2, "run"),
    ("ftrl", "mean", "ragged", 8, "fit"),
    ("adam", "sum", "dense", 1, "fit"),
]
ALL = [
    (*each, replicas, how)
    for each in itertools.product(problem.OPTIMIZERS, COMBINERS, KINDS)
    for replicas, how in itertools.product((1, 2, 3, 8), ("fit", "run"))
]


def mirrored(replicas: int) -> rx.Strategy:
    return rx.MirroredStrategy([f"cpu:{i}" for i in range(replicas)])


def assert_equal(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.filterwarnings("ignore:.*is split over")
@pytest.mark.parametrize(
    "case", [*SOME, *(pytest.param(case, marks=pytest.mark.exhaustive) for case in ALL if case not in SOME)], ids=str
)
def test_training_is_that_of_keras_rs(case: tuple[Any, ...]):
    optimizer, combiner, kind, replicas, how = case
    data = problem.batches(kind, problem.spread_ids)
    wanted = problem.by_keras_rs(optimizer, combiner, data)
    assert_equal(problem.trained(mirrored(replicas), how, optimizer, combiner, data), wanted)
