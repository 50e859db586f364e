"""The recommender learns the same on one device, on 8 devices and on parameter servers."""

from __future__ import annotations

import re

import pytest

from tests.test_examples import run

pytest.importorskip("ray")
pytest.importorskip("keras_rs")


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.timeout(600)
@pytest.mark.nightly
def test_recommender_is_as_good_on_every_kind_of_strategy():
    output = run("recommender.py", "--rows", 12_000, "--batch", 256, "--epochs", 2)
    auc = {name: float(value) for name, value in re.findall(r"RESULT recommender_auc_(\w+) ([\d.]+)", output)}
    assert auc["one_device"] > 0.6
    assert auc["mirrored"] == pytest.approx(auc["one_device"], abs=2e-4)  # the same sums, in another order
    assert auc["servers"] == pytest.approx(auc["one_device"], abs=4e-3)  # few steps, and asynchronous ones
