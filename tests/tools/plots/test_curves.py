"""The lines have the numbers that were given, and their names stand apart."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import replicax as rx
from replicax.tools.plots.curves import apart


def test_each_curve_is_drawn_with_its_name():
    figure = rx.plots.losses({"a": [3.0, 2.0, 1.0], "b": [3.0, np.nan]}, title="Two")
    (axes,) = figure.axes
    assert list(axes.lines[0].get_ydata()) == [3.0, 2.0, 1.0]
    assert list(axes.lines[0].get_xdata()) == [1, 2, 3]
    assert sorted(text.get_text() for text in axes.texts) == ["a", "b"]
    assert (axes.get_title(loc="left"), axes.get_xlabel()) == ("Two", "step")


def test_of_a_history_the_losses_are_drawn():
    history = SimpleNamespace(history={"loss": [2.0, 1.0], "accuracy": [0.5, 0.6], "val_loss": [2.5, 1.5]})
    (axes,) = rx.plots.losses(history).axes
    assert sorted(text.get_text() for text in axes.texts) == ["loss", "val_loss"]
    assert axes.get_xlabel() == "epoch"


def test_a_history_has_its_losses_and_metrics_side_by_side(tmp_path):
    kept = {"loss": [2.0, 1.0], "accuracy": [0.5, 0.6], "val_loss": [2.5, 1.5], "val_accuracy": [0.4, 0.5]}
    figure = rx.plots.history(SimpleNamespace(history=kept), path=tmp_path / "h.svg")
    names = [sorted(text.get_text() for text in axes.texts) for axes in figure.axes]
    assert names == [["loss", "val_loss"], ["accuracy", "val_accuracy"]]
    assert list(figure.axes[1].lines[0].get_ydata()) == [0.5, 0.6]
    assert (tmp_path / "h.svg").stat().st_size > 0
    assert len(rx.plots.history({"loss": [2.0]}).axes) == 1


@pytest.mark.parametrize("wrong", [{}, SimpleNamespace(history={}), None])
def test_what_is_no_history_is_said(wrong: object):
    with pytest.raises(rx.errors.ArgumentError, match="istory"):
        rx.plots.history(wrong)  # type: ignore[arg-type]


def test_names_are_moved_as_little_as_needed():
    np.testing.assert_allclose(apart([0.2, 0.21, 0.22, 0.9], 0.1), [0.11, 0.21, 0.31, 0.9])
    np.testing.assert_allclose(apart([0.1, 0.3], 0.1), [0.1, 0.3])


def test_the_suggestion_lies_on_the_curve():
    (axes,) = rx.plots.learning_rates([1e-3, 1e-2, 1e-1], [3, 2, 5], [3.0, 2.5, 3.5], 1e-2).axes
    assert [line.get_ydata()[0] for line in axes.lines if len(line.get_xdata()) == 1] == [2.5]
    assert [text.get_text() for text in axes.texts] == ["0.01"]


@pytest.mark.parametrize("curves", [{}, {"loss": []}, {"loss": [np.nan]}, [1.0, 2.0]])
def test_what_is_no_curve_is_said(curves: object):
    with pytest.raises(rx.errors.ArgumentError, match="urve"):
        rx.plots.losses(curves)  # type: ignore[arg-type]
    with pytest.raises(rx.errors.ArgumentError, match="got 2, 1 and 2"):
        rx.plots.learning_rates([1, 2], [1], [1, 2])
