"""Fixtures of the scheduler's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import replicax.parameter_server.scheduling.scheduler as scheduler_module
from tests.parameter_server.scheduling.party import Party


@pytest.fixture
def party(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Party]]:
    """Makes parties, whose schedulers look around often, and closes them at the end."""
    monkeypatch.setattr(scheduler_module, "_TICK_S", 0.02)
    parties: list[Party] = []

    def make(**options: object) -> Party:
        parties.append(Party(**options))
        return parties[-1]

    yield make
    for each in parties:
        each.scheduler.close()
