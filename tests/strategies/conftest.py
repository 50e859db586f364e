from __future__ import annotations

import pytest

import replicax as rx


@pytest.fixture
def two(mirrored) -> rx.MirroredStrategy:
    return mirrored(2)
