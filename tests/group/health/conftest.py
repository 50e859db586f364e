from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.group.health.workers import Worker, two_workers


@pytest.fixture
def workers() -> Iterator[list[Worker]]:
    with two_workers() as made:
        yield made
