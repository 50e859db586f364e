"""Each worker has a row, and each period its place in it."""

from __future__ import annotations

import pytest

import replicax as rx
from replicax.job.membership_history import History, Span
from replicax.tools.plots.style import LIGHT


def test_periods_have_their_times_and_colours():
    figure = rx.plots.worker_timeline([(10, 5.0, 9.0, "trains"), (2, 5.0, 6.0, "lost"), (2, 7.0, 9.0, "trains")])
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["worker 2", "worker 10"]
    assert [(bar.get_x(), bar.get_width()) for bar in axes.patches] == [(0, 4), (0, 1), (2, 2)]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["trains", "lost"]
    assert axes.patches[1].get_facecolor()[:3] == pytest.approx(
        [int(LIGHT.alarm[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    )


def test_the_history_of_an_elastic_job_is_drawn():
    history = History(runs=[Span(0, 0, 1.0, 9.0, "")], memberships=[Span(0, 0, 2.0, 9.0, "")])
    (axes,) = rx.plots.worker_timeline(history).axes
    assert [(bar.get_x(), bar.get_width()) for bar in axes.patches] == [(0, 8), (1, 7)]


@pytest.mark.parametrize("job", [[], [(0, 2.0, 1.0, "back")], [7]])
def test_what_is_no_period_is_said(job: object):
    with pytest.raises(rx.errors.ArgumentError, match="eriod"):
        rx.plots.worker_timeline(job)  # type: ignore[arg-type]
