"""Fixtures of clients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.job.processes import fakes


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Iterator[fakes.RayOfHosts]:
    """Lets the hosts of workers live in this process, without Ray."""
    with fakes.fake_ray(monkeypatch) as cluster:
        yield cluster
