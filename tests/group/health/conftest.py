from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.group.health.workers import Worker


@pytest.fixture
def workers() -> Iterator[list[Worker]]:
    made = [Worker(0), Worker(1)]
    for worker in made:
        worker.meet([other for other in made if other is not worker])
    yield made
    for worker in made:
        worker.stop()
