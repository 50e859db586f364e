"""Fixtures of the scheduler's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.parameter_server.scheduling.party import Party


@pytest.fixture
def party() -> Iterator[Callable[..., Party]]:
    """Makes parties, and closes them at the end."""
    parties: list[Party] = []

    def make(**options: object) -> Party:
        parties.append(Party(**options))
        return parties[-1]

    yield make
    for each in parties:
        each.scheduler.close()
