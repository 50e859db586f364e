"""The parts of a checkpoint as they are known before it is written, and when it was read."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax
import numpy as np

from replicax.checkpoint.contents import ObjectParts
from replicax.checkpoint.deferred import DeferredRestore
from replicax.checkpoint.metadata import Metadata
from replicax.typing import PyTree


@dataclasses.dataclass(frozen=True)
class Prepared:
    """The contents of a checkpoint that is to be written, as known before any variable's value is read.

    Attributes:
        parts: The parts of the objects.
        waiting: Restored values that wait for objects to be built.
        state: The encoded states, by name.
        step: The training step.
    """

    parts: ObjectParts
    waiting: dict[str, np.ndarray]
    state: dict[str, dict[str, object]]
    step: int | None


@dataclasses.dataclass(frozen=True)
class ReadCheckpoint:
    """The values, states and metadata that were read of a checkpoint, for some objects.

    Attributes:
        path: The checkpoint.
        names: The names in it.
        expected: The names in the objects.
        parts: The parts of the objects.
        values: The values of variables and arrays, by name.
        large: How those of large variables are to be read, when all is known to be there.
        states: The states, by name.
        waiting: The values that wait for objects to be built.
        metadata: The metadata of the checkpoint.
    """

    path: Path
    names: list[str]
    expected: list[str]
    parts: ObjectParts
    values: dict[str, jax.Array | np.ndarray]
    large: dict[str, jax.ShapeDtypeStruct]
    states: dict[str, PyTree]
    waiting: list[DeferredRestore]
    metadata: Metadata
