"""A group of one process: membership that a test changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import pytest

import replicax.contracts.group as groups
from replicax.contracts.group import Group, World
from replicax.data.receivers import Receivers
from replicax.runtime import replica_mesh


class FakeGroup(Group):
    """A group whose replicas are the first devices of this process.

    Attributes:
        at_boundary: Called at each boundary; a test changes the world there.
        boundaries: How many there were.
    """

    may_change = True

    def __init__(self, replicas: int):
        super().__init__()
        self.present = 1
        self.replicas = replicas
        self.at_boundary: Callable[[], None] = lambda: None
        self.boundaries = 0

    @property
    def number(self) -> int:
        return self.present

    @property
    def world(self) -> World:
        return World(self.present, 0, (0,), ("worker:0",))

    def change(self, replicas: int) -> None:
        self.present += 1
        self.replicas = replicas

    def executed(
        self, run: Callable[[], Any], outcome_of: Callable[[Any], Any], adopted: Callable[[Any], Any], nbytes: int = 0
    ) -> Any:
        """Returns the outcome as if this process had taken it over from another one."""
        return adopted(outcome_of(run()))

    def boundary(self, *places: object) -> None:
        self.boundaries += 1
        self.at_boundary()

    def receivers(self) -> Receivers:
        meshes = {k: replica_mesh(jax.devices()[:k]) for k in range(1, self.replicas + 1)}
        return Receivers.of(self.replicas, meshes.__getitem__, None)


def install(monkeypatch: pytest.MonkeyPatch, replicas: int) -> FakeGroup:
    """Makes this process elastic."""
    made = FakeGroup(replicas)
    monkeypatch.setattr(groups, "_present", made)
    return made
