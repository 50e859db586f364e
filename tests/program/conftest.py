from __future__ import annotations

from collections.abc import Iterator

import pytest

import replicax as rx


@pytest.fixture
def two(mirrored) -> rx.MirroredStrategy:
    return mirrored(2)


@pytest.fixture
def eagerly() -> Iterator[None]:
    rx.config.run_eagerly(True)
    yield
    rx.config.run_eagerly(False)


@pytest.fixture(params=["compiled", "eager"])
def either_way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs the test twice: compiled, and operation by operation."""
    rx.config.run_eagerly(request.param == "eager")
    yield request.param
    rx.config.run_eagerly(False)
