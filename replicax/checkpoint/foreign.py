"""Checkpoints of TensorFlow's, which `tensorflow/checkpoints` reads: what `restore` and `latest_checkpoint` need of it.

That is an upper room. It is loaded where a path is no checkpoint of replicax's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeGuard

from replicax.checkpoint.coordination import Coordination
from replicax.checkpoint.load_status import LoadStatus
from replicax.checkpoint.places import Place
from replicax.contracts import upper_rooms
from replicax.typing import PyTree

#: Names in the checkpoint, which may have `*`, with variables, objects, names here, or None; or a function of a name.
TensorMapping: TypeAlias = Mapping[str, PyTree] | Callable[[str], PyTree]


class TensorFlowCheckpoints(Protocol):
    """The module that reads TensorFlow's checkpoints."""

    def is_tensorflow(self, path: Path) -> bool:
        """Returns whether a path looks like a checkpoint of TensorFlow's."""

    def restore_tensorflow(
        self,
        path: Path,
        objects: dict[str, PyTree],
        coordination: Coordination,
        mapping: TensorMapping | None,
        strict: bool,
        should_verify: bool,
    ) -> tuple[LoadStatus, int | None]:
        """Restores one; returns what was restored, and the number of saves if it has one."""

    def latest_tensorflow(self, folder: Path) -> Path | None:
        """Returns the checkpoint that the file `checkpoint` in a folder names; None if there is no such file."""

    def open_checkpoint(self, path: str) -> Any:
        """Opens one; its `step` is the one it was saved at, if it says so."""


def is_tensorflow(place: Place) -> TypeGuard[Path]:
    """Returns whether a place looks like a checkpoint of TensorFlow's. They are read from a disk only."""
    return isinstance(place, Path) and tensorflow_checkpoints().is_tensorflow(place)


def tensorflow_checkpoints() -> TensorFlowCheckpoints:
    """Returns the module that reads TensorFlow's checkpoints."""
    module: TensorFlowCheckpoints = upper_rooms.load(upper_rooms.TENSORFLOW_CHECKPOINTS)
    return module
