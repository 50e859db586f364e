"""The state of everything that draws random numbers in a Keras program, so that another process can go on with it."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import jax
import numpy as np

from replicax.compat.keras_seeds import global_seed_state, set_global_seed_state


class Generators(NamedTuple):
    """The states of the global random generators of NumPy and Python."""

    numpys: Any
    pythons: Any

    @classmethod
    def here(cls) -> Generators:
        """Returns those of this process."""
        return cls(np.random.get_state(legacy=False), random.getstate())

    @classmethod
    def of_json(cls, numpys: Any, pythons: Any) -> Generators:
        """Returns the states that JSON has held, which makes tuples lists."""
        version, words, gauss = pythons
        return cls(numpys, (version, tuple(words), gauss))

    def as_json(self) -> tuple[Any, Any]:
        """Returns the states as JSON can hold them."""
        plain = jax.tree_util.tree_map(lambda x: x.tolist() if isinstance(x, np.ndarray) else x, self.numpys)
        return plain, self.pythons

    def set(self) -> None:
        """Makes this process go on from there."""
        np.random.set_state(self.numpys)
        random.setstate(self.pythons)


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
