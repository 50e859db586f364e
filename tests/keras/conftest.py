"""Strategies for the tests of Keras models."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def three(mirrored):
    """Three devices: hardly any batch divides by them."""
    return mirrored(3)


@pytest.fixture(scope="session")
def eight(mirrored):
    return mirrored(8)
