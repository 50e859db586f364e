"""The state of everything that draws random numbers in a Keras program, so that another process can go on with it."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import jax
import numpy as np

from replicax.compat.keras_seeds import global_seed_state, set_global_seed_state


class RandomState(NamedTuple):
    """The states of the global generators of Python, NumPy and Keras."""

    pythons: tuple[object, ...]
    numpys: tuple[object, ...]
    kerass: np.ndarray | None  # of its seed generator, uint32 of shape (2,); None if nothing has drawn from it

    @classmethod
    def here(cls) -> RandomState:
        """Returns those of this process."""
        return cls(random.getstate(), np.random.get_state(legacy=True), global_seed_state())  # type: ignore[arg-type]

    def set(self) -> None:
        """Makes this process go on from there."""
        if self.kerass is not None:
            set_global_seed_state(self.kerass)  # It may draw a seed before it is given this one.
        random.setstate(self.pythons)
        np.random.set_state(self.numpys)  # type: ignore[arg-type]


def told_generators() -> list[Any]:
    """Returns the states of the global generators of Python and NumPy, as JSON can hold them."""
    state = random.getstate(), np.random.get_state(legacy=False)
    told: list[Any] = jax.tree_util.tree_map(lambda x: x.tolist() if isinstance(x, np.ndarray) else x, list(state))
    return told


def set_told_generators(told: list[Any]) -> None:
    """Makes the global generators of Python and NumPy go on from what another process has told."""
    (version, words, gauss), numpys = told
    random.setstate((version, tuple(words), gauss))
    np.random.set_state(numpys)
