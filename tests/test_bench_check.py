"""The comparison with stored ratios, and the contest that measures them, in `benchmarks/peers`."""

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture(autouse=True)
def on_the_path(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield
    for name in [name for name in sys.modules if name == "peers" or name.startswith("peers.")]:
        del sys.modules[name]


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Contestants in plain Python: a step of each counts down from the first loss."""
    Path(tmp_path, "fake_steps.py").write_text(
        """
import os, time

class Fake:
    def __init__(self, loss, seconds):
        self.loss, self.seconds = loss, seconds
    def __call__(self):
        time.sleep(self.seconds)
        self.loss *= 0.5
    def wait(self):
        print("what a program prints is not an answer")
    def last(self):
        return self.loss

def build(loss=1.0, seconds=0.0):
    return Fake(loss, seconds)

def broken():
    raise ValueError("no such device")

def rank():
    return Fake(float(os.environ["RANK"]) + float(os.environ["WORLD_SIZE"]), 0.0)
"""
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def test_the_stored_ratios_survive_being_written(tmp_path):
    from peers import ratios

    stored = ratios.load(ratios.STORED)
    ratios.save(tmp_path / "ratios.toml", stored)
    assert ratios.load(tmp_path / "ratios.toml") == stored
    assert set(stored.tolerances) <= {name for figures in stored.measured.values() for name in figures}


def test_only_figures_above_their_own_tolerance_are_worse():
    from peers.ratios import Stored

    stored = Stored(0.1, {"b": 0.5}, {}, {2: {"a": 1.0, "b": 1.0}, 16: {"a": 2.0}})
    assert stored.worse({"a": 1.09, "b": 1.49, "unknown": 9.0}, cores=2) == []
    assert [each[:3] for each in stored.worse({"a": 1.11, "b": 1.51}, cores=4)] == [("a", 1.11, 1.0), ("b", 1.51, 1.0)]
    assert stored.worse({"a": 2.1}, cores=12) == []


def test_a_contest_measures_in_turns_and_compares_losses(programs):
    from peers.contest import ContestError, Entry, Plan, hold

    plan = Plan(rounds=3, steps=2, launches=2, deadline=60)
    quick = Entry("quick", "fake_steps:build", {"seconds": 0.001})
    slow = Entry("slow", "fake_steps:build", {"seconds": 0.02})
    outcome = hold([quick, slow], plan)
    assert len(outcome.medians["quick"]) == 2
    assert outcome.best(["quick", "slow"]) == "quick"
    assert outcome.ratio("slow", "quick") > 2
    with pytest.raises(ContestError, match="other does not compute what quick does"):
        hold([quick, Entry("other", "fake_steps:build", {"loss": 1.01})], plan)


def test_a_contestant_that_fails_says_why(programs):
    from peers.contest import ContestError, Entry, Plan, hold

    with pytest.raises(ContestError, match=r"broken ended with 1(.|\n)*no such device"):
        hold([Entry("broken", "fake_steps:broken")], Plan(deadline=60))


def test_the_first_of_several_workers_answers(programs):
    from peers.contest import Entry, Plan, hold

    two = Entry("two", "fake_steps:rank", workers=2)
    hold([two, Entry("alone", "fake_steps:build", {"loss": 2.0})], Plan(rounds=1, steps=1, launches=1, deadline=60))
