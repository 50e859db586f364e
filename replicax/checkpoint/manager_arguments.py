"""Checking what a `CheckpointManager` is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from replicax.checkpoint.checkpoint import Checkpoint
from replicax.checkpoint.retention import KeptForGood
from replicax.errors import ArgumentError


def positional(given: Sequence[Any], checkpoint: Any, directory: Any, max_to_keep: Any) -> tuple[Any, Any, Any]:
    """Returns the checkpoint, the directory and `max_to_keep`, given by keyword or not.

    Args:
        given: What was given without a keyword: the directory, or what TensorFlow's manager takes.
        checkpoint: What was given by keyword, or None; so are the others.
        directory: Likewise.
        max_to_keep: Likewise; what was given without a keyword counts.

    Raises:
        ArgumentError: There are too many, or one was given twice.
    """
    names = ["checkpoint", "directory", "max_to_keep"] if given and isinstance(given[0], Checkpoint) else ["directory"]
    if len(given) > len(names):
        raise ArgumentError(
            "A CheckpointManager takes (directory, objects={...}) or, as TensorFlow's, (checkpoint, directory, "
            f"max_to_keep), and all else by keyword; got {given!r:.200}."
        )
    found = {"checkpoint": checkpoint, "directory": directory}
    for name, value in zip(names, given, strict=False):
        if found.get(name) is not None:
            raise ArgumentError(f"`{name}` was given twice: {value!r:.100} and {found[name]!r:.100}.")
        found[name] = value
    if found["directory"] is None:
        raise ArgumentError(
            "`directory` is missing: CheckpointManager(checkpoint, directory), or CheckpointManager(directory, "
            "objects={...})."
        )
    return found["checkpoint"], found["directory"], found.get("max_to_keep", max_to_keep)


def checkpoint_of(checkpoint: Any, objects: Mapping[str, Any] | None) -> Checkpoint:
    """Returns the checkpoint of a manager.

    Raises:
        ArgumentError: It is none, or there are `objects` too, or neither.
    """
    if (objects is None) == (checkpoint is None):
        raise ArgumentError("Pass either `objects` or a `checkpoint`, and not both.")
    if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
        raise ArgumentError(f"`checkpoint` is an rx.Checkpoint, got {checkpoint!r:.100}.")
    return Checkpoint(dict(objects or {})) if checkpoint is None else checkpoint


def checked_name(name: Any) -> str | None:
    """Returns what the names of checkpoints begin with.

    Raises:
        ArgumentError: It cannot be part of a directory's name.
    """
    if name is not None and (not isinstance(name, str) or not name or "/" in name or name.startswith(".")):
        raise ArgumentError(
            f"`checkpoint_name` is what names of directories begin with, such as 'ckpt', got {name!r:.100}: it has no "
            "'/' in it and does not begin with '.'."
        )
    return name


def kept_for_good(directory: Path, hours: Any) -> KeptForGood | None:
    """Returns what decides which old checkpoints are kept for good; None if `hours` is None.

    Raises:
        ArgumentError: `hours` is no number above 0.
    """
    if hours is None:
        return None
    if isinstance(hours, bool) or not isinstance(hours, (int, float)) or not hours > 0:
        raise ArgumentError(f"`keep_checkpoint_every_n_hours` is a number above 0, got {hours!r:.100}.")
    return KeptForGood(directory, float(hours))


def whole_number(given: Any, name: str) -> int:
    """Returns the number that is given, perhaps as a variable or an array.

    Raises:
        ArgumentError: It is no whole number of at least 0.
    """
    found = np.asarray(given.value if hasattr(given, "assign") else given)
    if found.shape != () or found.dtype.kind not in "iu" or found < 0:
        raise ArgumentError(f"`{name}` is a whole number of at least 0, got {given!r:.100}.")
    return int(found)
