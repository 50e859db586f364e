"""Workers that join a `fit` read the same batches in the same order as those that were there before."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from replicax.errors import ElasticError
from replicax.keras.loop_state import Progress
from replicax.keras.random_state import Generators

BATCHES, EPOCHS = 4, 3


class Worlds:
    """Gives a fit's place at one of its boundaries; lets a newcomer take one."""

    def __init__(self, gives_at: int | None = None, given: bytes | None = None):
        self.is_member, self._given, self._gives_at = given is None, given, gives_at
        self._boundaries = itertools.count()
        self.progress: Any = None
        self.gave: bytes | None = None

    def join(self) -> None:
        assert self._given is not None
        self.progress.take([], self._given)

    def boundary(self) -> None:
        if next(self._boundaries) == self._gives_at:
            _, self.gave = self.progress.give()


class Pass:
    """A pass over batches whose order is drawn when the first one is read, as Keras's adapters do it."""

    def __init__(self) -> None:
        self._order: list[int] | None = None

    def __iter__(self) -> Pass:
        return self

    def __next__(self) -> int:
        if self._order is None:
            self._order = list(range(BATCHES))
            random.shuffle(self._order)
        return self._order.pop()


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICAX_TOKEN", "the job's")  # `replicax run` sets it; without it no object is taken.


def fitted(worlds: Worlds, seed: int) -> list[tuple[int, int]]:
    """Returns the epoch and batch of each step that a worker makes, as Keras's loop makes them."""
    random.seed(seed)
    np.random.seed(seed)
    model = SimpleNamespace(
        history=SimpleNamespace(history={}, epoch=[]),
        optimizer=None,
        variables=[],
        metrics_variables=[],
        get_metrics_result=dict,
        _initial_epoch=None,
    )
    strategy = SimpleNamespace(placement=SimpleNamespace(follow=lambda variables: None))
    writers = SimpleNamespace(steps=[], goes_on=False, is_muted=False)
    progress: Any = Progress(model, strategy, worlds, writers, [], None, takes_in=True)
    worlds.progress = progress
    progress.begin()
    made = []
    for epoch in range(model._initial_epoch or 0, EPOCHS):
        progress.begin_epoch(epoch)
        iterator = Pass()
        for _ in range(BATCHES):
            if progress.passes(iterator):
                continue
            made.append((epoch, next(iterator)))
            progress.count()
    return made


@pytest.mark.parametrize("second", range(0, EPOCHS * BATCHES, 3))
@pytest.mark.parametrize("first", range(EPOCHS * BATCHES))
def test_a_newcomer_and_one_that_got_its_place_from_it_read_what_the_others_read(first: int, second: int):
    old = Worlds(gives_at=first)
    expected = fitted(old, seed=1)
    newcomer = Worlds(gives_at=second, given=old.gave)
    found = fitted(newcomer, seed=2)
    assert found == expected[first:]
    if newcomer.gave is not None:
        third = fitted(Worlds(given=newcomer.gave), seed=3)
        assert third == expected[EPOCHS * BATCHES - len(third) :]
        assert len(third) == EPOCHS * BATCHES - first - second - 1


def test_generators_go_on_from_a_state():
    state = Generators.here()
    drawn = random.random(), np.random.random()
    state.set()
    assert (random.random(), np.random.random()) == drawn


def test_a_newcomer_in_fit_does_not_take_a_place_in_another_script():
    with pytest.raises(ElasticError, match="same script"):
        fitted(Worlds(given=b"of a custom loop"), seed=1)
