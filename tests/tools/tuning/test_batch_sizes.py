"""The batch size that is found is the largest that fits, and looking for it changes nothing."""

from __future__ import annotations

import pickle
from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import given, strategies as st

import replicax as rx
from replicax.tools.tuning.batch_sizes import Limit, largest
from tests.contract.problems import batches
from tests.tools.tuning.problems import loop_of, model_of, values_of

BATCH = batches((4,))[0]


@given(st.integers(0, 50), st.integers(1, 9), st.integers(0, 60), st.integers(1, 3000), st.integers(0, 20_000))
def test_the_search_finds_the_largest(first: int, slope: int, jump: int, most: int, limit: int):
    """Needs grow, also by jumps: XLA chooses other programs for larger batches."""

    def need(n: int) -> int:
        return first + slope * n + jump * (n.bit_length() + n // 7)

    expected = max((n for n in range(1, most + 1) if need(n) <= limit), default=0)
    asked: list[int] = []
    assert largest(lambda n: asked.append(n) or need(n), lambda: limit, most) == expected
    assert len(set(asked)) <= 30


def compiled_bytes(strategy: rx.Strategy, step: Any, rows: int) -> int:
    x, y = (np.repeat(leaf[:1], rows, axis=0) for leaf in BATCH)
    batch = next(iter(strategy.distribute_dataset([(x, y)])))
    stats = step.lower(batch).compile().memory_analysis()
    needed = stats.argument_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes
    return needed + stats.temp_size_in_bytes + 2 * (x.nbytes + y.nbytes) // strategy.num_replicas_in_sync


@pytest.mark.nightly
@pytest.mark.parametrize(
    "replicas", [pytest.param(1, marks=pytest.mark.nightly), pytest.param(2, marks=pytest.mark.nightly), 3, 8]
)
def test_the_largest_batch_of_a_loop(mirrored, replicas: int):
    strategy = mirrored(replicas)
    model, optimizer, step = loop_of(strategy)
    step(next(iter(strategy.distribute_dataset([BATCH]))))
    before = values_of(model, optimizer)
    limit = compiled_bytes(strategy, step, 40 * replicas)
    programs = step.num_programs
    with strategy.scope():
        size = rx.tuning.find_batch_size(step, BATCH, memory=limit)
    assert size % replicas == 0
    assert size >= 40 * replicas
    assert compiled_bytes(strategy, step, size) == size.bytes <= limit
    assert compiled_bytes(strategy, step, size + replicas) > limit
    assert step.num_programs <= programs + 2  # Those of the two lines above.
    for old, new in zip(before, values_of(model, optimizer), strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.nightly
def test_the_largest_batch_of_fit(mirrored):
    model = model_of(mirrored(2))
    x, y = batches((24,))[0]
    model.fit(x, y, verbose=0)
    before = values_of(model, model.optimizer)
    size = rx.tuning.find_batch_size(model, (x, y), memory=200_000, multiple_of=16)
    assert size % 16 == 0
    assert size.bytes <= 200_000 < size.tried[size + 16]
    for old, new in zip(before, values_of(model, model.optimizer), strict=True):
        np.testing.assert_array_equal(old, new)
    assert rx.tuning.find_batch_size(model, (x, y), memory=10**12, max_batch_size=96) == 96


def test_a_batch_size_can_be_used_and_sent():
    size = rx.tuning.BatchSize(48, limit=10, tried={64: 11, 48: 9})
    assert (size + 1, size.bytes, list(size.tried)) == (49, 9, [48, 64])
    again = pickle.loads(pickle.dumps(size))
    assert (again, again.bytes, again.limit) == (48, 9, 10)


class Device:
    platform, id = "gpu", 0

    def __init__(self, stats: dict[str, int] | None):
        self._stats = stats

    def memory_stats(self) -> dict[str, int] | None:
        return self._stats


def test_a_device_that_knows_its_memory_gives_what_others_leave():
    limit = Limit(Device({"bytes_limit": 1000, "bytes_in_use": 300}), None, 0.1)
    assert limit.bytes == 900 - 300
    with pytest.raises(rx.errors.ArgumentError, match=r"gpu:0 does not say .* memory=8 \* 2\*\*30"):
        Limit(Device(None), None, 0.1)


def test_what_does_not_fit_is_said(mirrored):
    strategy = mirrored(2)
    _, _, step = loop_of(strategy)
    with strategy.scope():
        with pytest.raises(rx.errors.ArgumentError, match="cpu:0 does not say how much memory it has"):
            rx.tuning.find_batch_size(step, BATCH)
        with pytest.raises(rx.errors.BatchError, match=r"Not even a batch of 2 rows fits: its step needs [\d,]+ bytes"):
            rx.tuning.find_batch_size(step, BATCH, memory=100)
        with pytest.raises(rx.errors.BatchError, match=r"equally many rows, at least one, got \[1, 2\] rows"):
            rx.tuning.find_batch_size(step, (np.ones((1, 64)), np.ones(2)), memory=100)
        with pytest.raises(rx.errors.ArgumentError, match="`memory` is a number of bytes"):
            rx.tuning.find_batch_size(step, BATCH, memory="8 GiB")  # type: ignore[arg-type]
    with pytest.raises(rx.errors.ArgumentError, match="is not compiled"):
        rx.tuning.find_batch_size(model_of(strategy, compiled=False), BATCH, memory=100)
    with pytest.raises(rx.errors.ArgumentError, match="outside of a strategy's scope"):
        rx.tuning.find_batch_size(keras.Sequential([keras.layers.Dense(1)]), BATCH, memory=100)
