"""Checks of the arguments of a `CheckpointManager`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import jax
import numpy as np

from replicax.checkpoint.checkpoint import Checkpoint
from replicax.checkpoint.places import Directory
from replicax.checkpoint.policies import (
    CounterGrowth,
    EveryHours,
    EverySteps,
    KeepPolicy,
    Newest,
    SavePolicy,
    checked_hours,
    listed,
)
from replicax.checks import checked_int
from replicax.contracts.variable_access import VariableLike
from replicax.errors import ArgumentError
from replicax.typing import PyTree

DEFAULT_TO_KEEP = 3


def check_counts(**counts: int | None) -> None:
    """Checks that each argument is None or a whole number of at least 1."""
    for name, number in counts.items():
        if number is not None:
            checked_int(name, number, least=1)


def checked_init(init_fn: Callable[[], object] | None) -> Callable[[], object] | None:
    """Returns `init_fn`, if it is a function or None."""
    if init_fn is not None and not callable(init_fn):
        raise ArgumentError(f"`init_fn` is a function or None, got {init_fn!r:.100}.")
    return init_fn


def positional(
    given: Sequence[PyTree], checkpoint: Checkpoint | None, directory: Directory | None, max_to_keep: int | None
) -> tuple[Checkpoint | None, Directory, int | None]:
    """Returns the checkpoint, the directory and `max_to_keep`, each given by keyword or by position."""
    names = ["checkpoint", "directory", "max_to_keep"] if given and isinstance(given[0], Checkpoint) else ["directory"]
    if len(given) > len(names):
        raise ArgumentError(
            "A CheckpointManager takes (directory, objects={...}) or, as TensorFlow's, (checkpoint, directory, "
            f"max_to_keep), and all else by keyword; got {given!r:.200}."
        )
    found: dict[str, PyTree] = {"checkpoint": checkpoint, "directory": directory}
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


def checkpoint_of(checkpoint: Checkpoint | None, objects: Mapping[str, PyTree] | None) -> Checkpoint:
    """Returns the checkpoint of a manager."""
    if (objects is None) == (checkpoint is None):
        raise ArgumentError("Pass either `objects` or a `checkpoint`, and not both.")
    if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
        raise ArgumentError(f"`checkpoint` is an rx.Checkpoint, got {checkpoint!r:.100}.")
    taken = [
        name for name in ("check_interval", "force") if name in (checkpoint.objects if checkpoint else objects or {})
    ]
    if taken:
        raise ArgumentError(
            f"{taken} in the checkpoint are arguments of a manager's `save`, which also takes new values of objects by "
            "name: rename these objects."
        )
    return Checkpoint(dict(objects or {})) if checkpoint is None else checkpoint


def checked_name(name: str | None) -> str | None:
    """Returns the prefix of the names of checkpoints."""
    if name is not None and (not isinstance(name, str) or not name or "/" in name or name.startswith(".")):
        raise ArgumentError(
            f"`checkpoint_name` is the beginning of directories' names, such as 'ckpt', got {name!r:.100}: it contains "
            "no '/' and does not begin with '.'."
        )
    return name


def save_policies(given: object, steps: int, counter: VariableLike | None, growth: int | None) -> list[SavePolicy]:
    """Returns what says when to save, of all arguments that do."""
    if growth is not None and (counter is None or steps != 1):
        raise ArgumentError(
            "`checkpoint_interval` is the growth of `step_counter` between saves, so it needs one, and excludes "
            "`save_interval_steps`."
        )
    if given is None:
        if growth is None:
            return [EverySteps(steps)]
        return [CounterGrowth(lambda: whole_number(counter, "step_counter"), growth)]
    if growth is not None or steps != 1:
        raise ArgumentError("`save_when` says when to save: leave out `save_interval_steps` and `checkpoint_interval`.")
    return cast("list[SavePolicy]", listed(given, SavePolicy, "save_when"))


def keep_policies(given: object, max_to_keep: int | None, hours: float | None) -> list[KeepPolicy]:
    """Returns what says which checkpoints are kept, of all arguments that do."""
    if given is None:
        return [
            Newest(max_to_keep),
            *([] if hours is None else [EveryHours(checked_hours("keep_checkpoint_every_n_hours", hours))]),
        ]
    if hours is not None or max_to_keep != DEFAULT_TO_KEEP:
        raise ArgumentError(
            "`keep` says which checkpoints are kept: put Newest(...) and EveryHours(...) into it, and leave out "
            "`max_to_keep` and `keep_checkpoint_every_n_hours`."
        )
    return cast("list[KeepPolicy]", listed(given, KeepPolicy, "keep"))


def whole_number(given: int | jax.Array | np.ndarray | VariableLike | None, name: str) -> int:
    """Returns an argument that is a number, or a variable or an array with a number, as an int."""
    found = np.asarray(getattr(given, "value", given) if hasattr(given, "assign") else given)
    if found.shape != () or found.dtype.kind not in "iu" or found < 0:
        raise ArgumentError(f"`{name}` is a whole number of at least 0, got {given!r:.100}.")
    return int(found)
