"""The demo's loop: exact whatever the batches and the devices."""

from __future__ import annotations

import math

import pytest

import replicax as rx
from replicax.cli.datasets import Dataset, load_digits
from replicax.cli.training import Epoch, Settings, Training, count_batches, layer_sizes


def train(strategy: rx.Strategy, dataset: Dataset, settings: Settings) -> tuple[list[Epoch], list[float]]:
    """Returns the epochs and the loss of each step."""
    losses: list[float] = []
    training = Training(strategy, dataset.pixels, settings)
    return list(training.epochs(dataset, lambda loss: losses.append(float(loss)))), losses


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_digits().limited(135)


@pytest.mark.nightly
def test_scores_are_means_over_rows_whatever_the_batches(digits: Dataset):
    """At rate 0 nothing is learned, so all passes over the same rows score alike; 135 rows leave partial batches."""
    same_rows = Dataset("Same", digits.train, digits.train)
    scores = []
    for batch_size in (64, 1000):
        (epoch,), losses = train(rx.MirroredStrategy(), same_rows, Settings(1, batch_size, 0.0))
        scores += [epoch.training, epoch.testing]
        assert len(losses) == count_batches(digits.train, batch_size) + 1
    for score in scores:
        assert score.loss == pytest.approx(scores[0].loss, rel=1e-6)
        assert score.accuracy == scores[0].accuracy


@pytest.mark.nightly
def test_devices_do_not_change_the_losses(digits: Dataset):
    settings = Settings(2, 50, 1e-3, seed=3)
    expected, step_losses = train(rx.OneDeviceStrategy("cpu:0"), digits, settings)
    assert expected[1].training.loss < expected[0].training.loss
    epochs, losses = train(rx.MirroredStrategy(), digits, settings)  # batches of 50 and 35 rows, on 5 and 7 replicas
    assert losses == pytest.approx(step_losses, abs=1e-5)
    for epoch, other in zip(epochs, expected, strict=True):
        assert epoch.training.loss == pytest.approx(other.training.loss, abs=1e-5)
        assert epoch.testing == pytest.approx(other.testing, abs=1e-5)


def test_the_seed_decides_the_weights(digits: Dataset):
    def first_loss(seed: int) -> float:
        return train(rx.OneDeviceStrategy("cpu:0"), digits.limited(16), Settings(1, 16, 0.0, seed))[1][0]

    assert first_loss(1) == first_loss(1) != first_loss(2)


def test_a_diverged_training_shows_as_nan(digits: Dataset):
    epochs, _ = train(rx.OneDeviceStrategy("cpu:0"), digits, Settings(1, 50, 1e30))
    assert math.isnan(epochs[0].testing.loss)


def test_the_network_is_the_tutorials():
    assert layer_sizes(784) == (784, 700, 500, 10)
