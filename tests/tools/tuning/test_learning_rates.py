"""The suggestion and its table; learning rates of larger batches."""

from __future__ import annotations

import math

import numpy as np
import pytest

import replicax as rx


def found(losses: list[float], diverged: bool = False) -> rx.tuning.LearningRates:
    rates = tuple(10.0 ** (i - 6) for i in range(len(losses)))
    return rx.tuning.LearningRates(rates, tuple(losses), tuple(losses), diverged)


def test_the_suggestion_is_where_the_loss_falls_most_steeply():
    outcome = found([3.0, 2.9, 2.0, 1.0, 0.9, 0.3, 9.0, 1.0])
    assert outcome.suggestion == pytest.approx(1e-4)
    assert outcome.lowest == pytest.approx(1e-1)


def test_a_fall_after_the_minimum_does_not_count():
    assert found([2.0, 1.9, 1.5, 90.0, 3.0]).suggestion == pytest.approx(1e-4)


@pytest.mark.parametrize("losses", [[1.0, 2.0, 3.0], [1.0, 1.0, 1.0]])
def test_without_a_fall_there_is_no_suggestion(losses: list[float]):
    outcome = found(losses, diverged=True)
    with pytest.raises(rx.errors.ArgumentError, match=r"falls at no learning rate between 1e-06 and 0\.0001"):
        _ = outcome.suggestion
    assert str(outcome).startswith("no suggestion: the loss falls nowhere (3 steps, the loss rose and ended the test)")
    assert "Try a smaller `min_learning_rate`" in str(outcome)
    assert list(outcome.plot().axes[0].texts) == []


def test_it_is_shown_as_a_table_and_as_a_plot():
    outcome = found(list(np.linspace(3, 1, 7)))
    assert "learning rate" in str(outcome)
    assert str(outcome).count("\n") == 8
    assert outcome._repr_html_().count("<tr>") == 8
    assert len(outcome.plot().axes[0].lines) == 4


@pytest.mark.parametrize(("rule", "power"), [("linear", 1), ("sqrt", 0.5)])
def test_learning_rates_are_scaled(rule: str, power: float):
    for rows in (32, 256, 1000):
        scaled = rx.tuning.scaled_learning_rate(0.3, batch_size=rows, base_batch_size=256, rule=rule)
        assert scaled == pytest.approx(0.3 * (rows / 256) ** power)


def test_what_cannot_be_scaled_is_said():
    with pytest.raises(rx.errors.ArgumentError, match="`rule` is one of 'linear', 'sqrt', got 'cubic'"):
        rx.tuning.scaled_learning_rate(0.1, batch_size=1, base_batch_size=1, rule="cubic")
    with pytest.raises(rx.errors.ArgumentError, match="`base_batch_size` must be an int of at least 1, got 0"):
        rx.tuning.scaled_learning_rate(0.1, batch_size=1, base_batch_size=0)
    with pytest.raises(rx.errors.ArgumentError, match="a number of at least 0, got nan"):
        rx.tuning.scaled_learning_rate(math.nan, batch_size=1, base_batch_size=1)
