"""Training with compressed gradients reaches the accuracy of training without, at equal steps."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

import replicax as rx
from replicax.cli.datasets import load_mnist
from tests.strategies.compressed import Mlp, compressed

FOLDERS = [parent / "shared" / "data" / "mnist" for parent in Path(__file__).resolve().parents]
MNIST = next((folder for folder in FOLDERS if folder.is_dir()), None)
KINDS = pytest.mark.parametrize(
    "compression", [rx.collectives.Int8(), rx.collectives.PowerSGD(rank=4)], ids=["int8", "powersgd"]
)


@functools.cache
def accuracy_on_digits(compression: Any) -> float:
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(1).permutation(len(images))
    x, y = (images / 16).astype("float32")[order], labels.astype("int32")[order]
    mlp = Mlp(compressed(compression, 4), (64, 128, 64, 10), rate=2e-3)
    mlp.train(x[:1200], y[:1200], steps=600, batch=64)
    return mlp.accuracy(x[1200:], y[1200:])


@KINDS
@pytest.mark.nightly
def test_digits_are_learned_as_well_as_without_compression(compression):
    assert accuracy_on_digits(None) > 0.97
    assert accuracy_on_digits(compression) >= accuracy_on_digits(None) - 0.005


@functools.cache
def accuracy_on_mnist(compression: Any) -> float:
    data = load_mnist(MNIST)
    mlp = Mlp(compressed(compression, 3), (784, 128, 10))
    mlp.train(data.train.images, data.train.labels, steps=2000, batch=120)
    return mlp.accuracy(data.test.images, data.test.labels)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.skipif(MNIST is None, reason="MNIST's files are not there: shared/data/mnist beside the checkout")
@KINDS
def test_mnist_is_learned_as_well_as_without_compression(compression):
    assert accuracy_on_mnist(None) > 0.965
    assert accuracy_on_mnist(compression) >= accuracy_on_mnist(None) - 0.005
