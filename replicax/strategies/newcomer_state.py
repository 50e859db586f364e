"""The state of a strategy, as a worker gets it that joins while the others train: variables and random seeds."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from replicax.contracts.variable_access import VariableLike
from replicax.keras.random_state import RandomState
from replicax.strategies.elastic_variables import Followers, Given
from replicax.strategies.mesh_placement import MeshPlacement


class StrategyState:
    """The state that a worker gets of a strategy in any case; `contracts.group.State` says what the methods do."""

    def __init__(self, followers: Followers, placement: Callable[[], MeshPlacement]):
        self._followers, self._placement = followers, placement

    def give(self) -> tuple[Sequence[np.ndarray], bytes]:
        """Returns the values of all variables, and what they are called."""
        given, values = self._followers.given(self._placement().variable_sharding)
        return values, json.dumps([given, _told_seeds()]).encode()

    def take(self, arrays: Sequence[np.ndarray], meta: bytes) -> None:
        """Gives the variables of this worker these values, and its random generators these states."""
        given, seeds = json.loads(meta)
        _hear_seeds(*seeds)
        self._followers.take([Given(*each) for each in given], arrays, self._placement().variable_sharding)

    def is_boundary(self, places: Sequence[object]) -> bool:
        """Returns True: between any two calls variables are whole."""
        del places
        return True

    def follows(self, variable: object) -> bool:
        """Returns whether a variable is given anyway."""
        return self._followers.has(variable)

    def track(self, variables: Callable[[], Mapping[str, VariableLike]]) -> None:
        """Matches variables first by the names that they have in a checkpoint."""
        self._followers.tracked = variables


def _told_seeds() -> list[Any]:
    """Returns the states of the global random generators in a form that JSON can hold."""
    pythons, numpys, kerass = RandomState.here()
    version, keys, gauss = cast("tuple[int, tuple[int, ...], float | None]", pythons)
    name, words, *rest = numpys
    known = None if kerass is None else kerass.tolist()
    return [[version, list(keys), gauss], [name, np.asarray(words).tolist(), *rest], known]


def _hear_seeds(pythons: list[Any], numpys: list[Any], kerass: list[int] | None) -> None:
    version, keys, gauss = pythons
    state = np.array(numpys[1], np.uint32)
    RandomState(
        (version, tuple(keys), gauss),
        (numpys[0], state, *numpys[2:]),
        None if kerass is None else np.array(kerass, np.uint32),
    ).set()
