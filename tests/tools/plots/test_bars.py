"""The bars are as high as what was counted."""

from __future__ import annotations

from types import SimpleNamespace

import jax.numpy as jnp
import keras
import pytest
from matplotlib.figure import Figure

import replicax as rx


def heights(figure: Figure) -> list[float]:
    return [bar.get_height() for bar in figure.axes[0].patches]


def test_memory_is_that_of_the_shards_of_each_device():
    strategy = rx.FullyShardedStrategy([f"cpu:{i}" for i in range(4)], min_size=8)
    with strategy.scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, use_bias=False)])
        count = rx.Variable(0)
    strategy.run(lambda: model(jnp.ones((4, 8))))
    figure = rx.plots.memory_per_device({"model": model, "count": [count], "array": {"a": jnp.ones(3)}})
    bars = heights(figure)
    assert bars[:4] == [8 * 16 * 4 / 4] * 4
    assert bars[4:8] == [4] * 4
    assert bars[8:] == [12, 0, 0, 0]
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == [f"cpu:{i}" for i in range(4)]


def test_bytes_are_stacked_by_kind(mirrored):
    strategy = mirrored(2)
    (batch,) = strategy.distribute_dataset([jnp.ones((4, 2))])
    step = rx.function(lambda batch: strategy.reduce("sum", strategy.run(jnp.sum, args=(batch,))))
    report = rx.dtensor.communication(step, batch)
    figure = rx.plots.bytes_per_step({"compiled": report, "given": {"all-gather": 6}})
    assert sum(heights(figure)) == report.total_sent_bytes + 6
    assert len(figure.axes[0].get_legend().get_texts()) == len({*report.sent_bytes, "all-gather"})


def test_staleness_shows_gaps_and_the_mean():
    figure = rx.plots.staleness(SimpleNamespace(staleness={0: 2, 3: 2}))
    assert heights(figure) == [2, 0, 0, 2]
    assert [text.get_text() for text in figure.axes[0].texts] == ["mean 1.50"]


def test_nothing_to_draw_is_said():
    with pytest.raises(rx.errors.ArgumentError, match="no array on a device"):
        rx.plots.memory_per_device({"nothing": []})
    with pytest.raises(rx.errors.ArgumentError, match="communication reports by name"):
        rx.plots.bytes_per_step({})
    with pytest.raises(rx.errors.ArgumentError, match="no update yet"):
        rx.plots.staleness({})
