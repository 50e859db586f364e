"""KerasHub's models under strategies that shard: losses, tokens and weights are those of one device."""

from __future__ import annotations

import pytest

from tests.hub import report
from tests.hub.backbones import BY_NAME

pytest.importorskip("keras_hub")
pytestmark = pytest.mark.nightly


@pytest.mark.parametrize("strategy", report.STRATEGIES)
@pytest.mark.parametrize("name", BY_NAME)
def test_a_model_from_a_preset_trains_and_generates_as_on_one_device(name: str, strategy: str, tmp_path):
    case, folder = BY_NAME[name], str(tmp_path)
    weights = report.saved(case, folder)
    told = report.under(report.STRATEGIES[strategy](), case, folder, weights)
    assert report.same(told, expected := report.by_hand(case, folder)), report.difference(told, expected)


@pytest.mark.multiprocess
@pytest.mark.slow
def test_so_it_does_on_two_processes(capfd):
    """The command of the report, with the two processes, for one model."""
    assert report.report(["gemma"])
    told = capfd.readouterr().out
    assert "RESULT backbones_exact 1" in told
    assert "RESULT weights_unaccounted 0" in told


def test_a_difference_is_seen():
    same = report.Told([1.0, 2.0], [3.0], [4, 5])
    assert report.same(same, report.Told([1.0, 2.000001], [3.0], [4, 5]))
    others = [
        report.Told([1.0, 2.1], [3.0], [4, 5]),
        report.Told([1.0, 2.0], [3.0, 3.0], [4, 5]),
        report.Told([1.0, 2.0], [float("nan")], [4, 5]),
        report.Told([1.0, 2.0], [3.0], [5, 4]),
        report.Told([1.0, 2.0], [3.0], [4, 5], unaccounted=1),
        report.Told([1.0, 2.0], [3.0], [4, 5], unexplained=1),
    ]
    assert not any(report.same(other, same) for other in others)
