"""Managers know what they have saved; so do their counterparts in a worker that joins later."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Protocol

from replicax.errors import ElasticError
from replicax.typing import PyTree


class Keeper(Protocol):
    """An object that saves a checkpoint, such as a manager."""

    def get_state(self) -> dict[str, PyTree]:
        """Returns what it knows, in a form that JSON can hold."""

    def set_state(self, state: Mapping[str, PyTree]) -> None:
        """Goes on where that of another worker is, which has returned `state`."""


class Keepers:
    """All that save one checkpoint, as long as they live."""

    def __init__(self) -> None:
        self._known: list[weakref.ref[Keeper]] = []

    def add(self, keeper: Keeper) -> None:
        """Adds one that was made."""
        self._known.append(weakref.ref(keeper))

    def get_states(self) -> list[dict[str, PyTree]]:
        """Returns the states of all."""
        return [keeper.get_state() for keeper in self._alive()]

    def set_states(self, states: Sequence[Mapping[str, PyTree]]) -> None:
        """Gives all of them the states of another worker's.

        Raises:
            ElasticError: There are others here.
        """
        alive = self._alive()
        if len(alive) != len(states):
            raise ElasticError(
                f"{len(alive)} managers save the checkpoint that strategy.join was given, and in the workers that "
                f"train {len(states)} do. All workers must run the same script: make managers before they join."
            )
        for keeper, state in zip(alive, states, strict=True):
            keeper.set_state(state)

    def _alive(self) -> list[Keeper]:
        return [keeper for reference in self._known if (keeper := reference()) is not None]
