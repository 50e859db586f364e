"""Comparing the names in a checkpoint with those of the objects that are to be restored."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from replicax.checkpoint.contents import ObjectParts
from replicax.checkpoint.metadata import Metadata
from replicax.checkpoint.places import Directory
from replicax.errors import CheckpointError

_log = logging.getLogger(__name__)

_SHOWN = 10  # names that a warning lists


def check_names(
    directory: Directory,
    found: Iterable[str],
    expected: Iterable[str],
    advice: Callable[[list[str]], str] = lambda unused: "",
) -> None:
    """Checks that a checkpoint and the objects have the same names; `advice` on those only in it comes first."""
    unused, missing = differences(found, expected)
    if unused or missing:
        raise CheckpointError(
            f"The checkpoint {directory} and the objects do not match. Only in the checkpoint: {unused or 'nothing'}; "
            f"only in the objects: {missing or 'nothing'}.{advice(unused)} To restore what both have, as TensorFlow "
            "does with expect_partial(), pass partial=True."
        )


def warn_of_left_out(directory: Directory, found: Iterable[str], expected: Iterable[str]) -> None:
    """Warns of what a partial restore has left out; the arguments are those of `check_names`."""
    unused, missing = differences(found, expected)
    if unused or missing:
        _log.warning(
            "The checkpoint %s was restored in part. Only in the checkpoint, and left out: %s; "
            "only in the objects, and as before: %s.",
            directory,
            _some(unused),
            _some(missing),
        )


def check_kinds(
    directory: Directory, parts: ObjectParts, metadata: Metadata, state: Mapping[str, object], partial: bool
) -> None:
    """Checks that what is an array in a checkpoint is one here, and the reverse, and that numbers mean the same."""
    for name in parts.names():
        is_array, has = name not in parts.states, "an array" if name in metadata.arrays else "no array"
        if (name in metadata.arrays and not is_array) or (name in state and is_array):
            raise CheckpointError(
                f"{name!r} is {has} in the checkpoint {directory}, and {'an' if is_array else 'no'} array here."
            )
    check_meanings(directory, metadata.kinds, parts.kinds, partial)


def check_meanings(
    directory: Directory, found: Mapping[str, Sequence[str]], own: Mapping[str, Sequence[str]], partial: bool
) -> None:
    """Checks that numbers mean the same in a checkpoint and here, as the kinds of both say."""
    # Two optimizers may have slots of the same shapes that mean something else; classes that share a base agree.
    others = [name for name, kinds in found.items() if name in own and not set(own[name]).intersection(kinds)]
    if not others:
        return
    name, more = others[0], f" ({len(others) - 1} more differ)" if len(others) > 1 else ""
    what = f"{name!r} is {found[name][0]} in the checkpoint {directory}, and {own[name][0]} here{more}"
    if not partial:
        raise CheckpointError(
            f"{what}: the numbers may mean something else. Make it as it was; or, to take them as they are, pass "
            "partial=True."
        )
    _log.warning("%s: the numbers were taken as they are.", what)


def differences(found: Iterable[str], expected: Iterable[str]) -> tuple[list[str], list[str]]:
    """Returns the names that are found but not expected, and those that are expected but not found."""
    found, expected = dict.fromkeys(found), dict.fromkeys(expected)
    return [name for name in found if name not in expected], [name for name in expected if name not in found]


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown or "nothing"
