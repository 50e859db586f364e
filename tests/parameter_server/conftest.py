"""Fixtures of asynchronous training."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import pytest

from tests.parameter_server import fakes


@pytest.fixture
def fake_ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lets workers and servers live in this process, without Ray."""
    jax.devices()  # Or a server would choose the number of XLA's threads for this process.
    platforms = jax.config.jax_platforms
    with fakes.fake_ray(monkeypatch):
        yield
    jax.config.update("jax_platforms", platforms)  # A server takes the CPU.
