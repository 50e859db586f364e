"""Worlds of one process: membership that a test changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import pytest

import replicax.contracts.worlds as worlds
from replicax.contracts.worlds import World
from replicax.data.receivers import Receivers
from replicax.runtime import replica_mesh


class FakeWorlds:
    """Worlds whose replicas are the first devices of this process.

    Attributes:
        at_boundary: Called at each boundary; a test changes the world there.
        boundaries: How many there were.
    """

    def __init__(self, replicas: int):
        self.present = 1
        self.replicas = replicas
        self.at_boundary: Callable[[], None] = lambda: None
        self.boundaries = 0

    @property
    def world(self) -> World:
        return World(self.present, 0, (0,), ("worker:0",))

    def change(self, replicas: int) -> None:
        self.present += 1
        self.replicas = replicas

    def attempt(self, call: Callable[[], Any]) -> Any:
        return call()

    def executed(self, run: Callable[[], Any], outcome_of: Callable[[Any], Any], adopted: Callable[[Any], Any]) -> Any:
        """Returns the outcome as if this process had taken it over from another one."""
        return adopted(outcome_of(run()))

    def boundary(self, *places: object) -> None:
        self.boundaries += 1
        self.at_boundary()

    def receivers(self) -> Receivers:
        meshes = {k: replica_mesh(jax.devices()[:k]) for k in range(1, self.replicas + 1)}
        return Receivers.of(self.replicas, meshes.__getitem__, None)


def install(monkeypatch: pytest.MonkeyPatch, replicas: int) -> FakeWorlds:
    """Makes this process elastic."""
    made = FakeWorlds(replicas)
    monkeypatch.setattr(worlds, "running", lambda: made)
    monkeypatch.setattr(worlds, "number", lambda: made.present)
    return made
