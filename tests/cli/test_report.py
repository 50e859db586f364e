"""What the demo shows, from scores that are made up."""

from __future__ import annotations

import io
import math
from pathlib import Path

import pytest
from rich.console import Console

from replicax.cli import report
from replicax.cli.training import Epoch, Score

PNG = b"\x89PNG\r\n\x1a\n"


def epochs(*losses: tuple[float, float]) -> list[Epoch]:
    return [Epoch(i, Score(train, 0.5), Score(test, 0.25)) for i, (train, test) in enumerate(losses, start=1)]


def shown(renderable: object) -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(renderable)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_an_epoch_is_one_line_with_all_scores():
    line = report.epoch_line(epochs((1.5, 0.75))[0], epochs=3)
    assert line == "epoch 1/3  training loss 1.500 accuracy 0.500  testing loss 0.750 accuracy 0.250"


def test_the_largest_difference_is_found_in_any_epoch_and_phase():
    one = epochs((1.0, 2.0), (0.5, 1.0))
    assert report.max_loss_difference(one, one) == 0
    assert report.max_loss_difference(epochs((1.0, 2.0), (0.5, 1.25)), one) == 0.25
    assert report.max_loss_difference(epochs((0.0, 2.0), (0.5, 1.25)), one) == 1.0


@pytest.mark.parametrize("place", [0, 1])
def test_nan_is_not_hidden_by_other_differences(place: int):
    losses = [(1.0, 2.0), (1.0, 2.0)]
    losses[place] = (math.nan, 3.0)
    assert math.isnan(report.max_loss_difference(epochs(*losses), epochs((1.0, 2.0), (1.0, 2.0))))


def test_the_table_has_both_losses_of_each_epoch():
    text = shown(report.comparison_table(epochs((1.5, 0.75)), epochs((1.5, 0.5)), devices=8))
    assert "8 devices" in text
    assert "one device" in text
    assert text.splitlines()[-1].split() == ["1", "1.5000000", "1.5000000", "0.7500000", "0.5000000", "2.5e-01"]


def test_the_verdict_says_whether_losses_agree():
    assert "✓" in report.verdict(1e-7)
    assert "float64" in report.verdict(2e-5)
    assert "diverged" in report.verdict(math.nan)


@pytest.mark.parametrize("losses", [[(1.0, 2.0)], [(1.0, 2.0), (0.5, 1.0)], [(math.nan, math.nan)]])
def test_the_picture_is_a_png(tmp_path: Path, losses: list[tuple[float, float]]):
    path = tmp_path / "curves.png"
    report.save_curves(path, "Digits", epochs(*losses), epochs(*losses), devices=8)
    assert path.read_bytes().startswith(PNG)
