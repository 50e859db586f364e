"""The things that all workers of a loop compare outside of programs, and what they make equal again."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from replicax.contracts.group import current_group
from replicax.contracts.strategy import StrategyBase
from replicax.contracts.variable_access import VariableLike, array_of, set_array
from replicax.errors import CheckpointError, WorkersDisagreeError
from replicax.runtime.transfer import host_copy, put

_BLOCK = 1 << 20


def has_workers(strategy: StrategyBase) -> bool:
    """Returns whether a strategy has devices in several processes, or may have them later."""
    return strategy.placement.spans_processes or strategy.placement.group.may_change


def check_same_names(names: list[str], worker: str) -> None:
    """Checks that all workers log values of the same names; all of them call this together."""
    told = current_group().exchange("the names of logs", [worker, names])
    logged = [own for _, own in told]
    if all(own == logged[0] for own in logged):
        return
    common = set(logged[0]).intersection(*logged[1:])
    odd = {other: sorted(set(own) - common) for other, own in told}
    raise WorkersDisagreeError("logs", {other: own for other, own in odd.items() if own})


def check_same_weights(path: str | os.PathLike[str]) -> None:
    """Checks that all workers are about to read the same bytes; all of them call this together."""
    told = current_group().exchange("load_weights", [str(path), _digest(path)])
    if any(digest != told[0][1] for _, digest in told):
        shown = "; ".join(f"process {i}: {name}, {digest}" for i, (name, digest) in enumerate(told))
        raise CheckpointError(
            f"load_weights: the workers have different files ({shown}). All must read the same values, or they would "
            "train models of their own: give all of them the same file, at a place that all of them see."
        )


def _digest(path: str | os.PathLike[str]) -> str:
    """Returns words for the bytes of a file; they are the same for all that cannot be read, which is said elsewhere."""
    found = hashlib.blake2b(digest_size=8)
    try:
        with open(path, "rb") as file:
            while block := file.read(_BLOCK):
                found.update(block)
    except (OSError, TypeError):
        return "which cannot be read"
    return f"of digest {found.hexdigest()}"


def make_alike(strategy: StrategyBase, variables: Sequence[VariableLike]) -> None:
    """Gives all workers the chief's values of variables that some worker may have assigned; all call it together."""

    def run() -> list[Any]:
        if strategy.placement.spans_processes:  # Else this process alone has them.
            strategy.placement.make_alike(variables)
        return [array_of(variable) for variable in variables]

    def outcome(arrays: list[Any]) -> list[np.ndarray]:
        return [host_copy(array) for array in arrays]

    def adopted(arrays: list[np.ndarray]) -> list[Any]:
        for variable, value in zip(variables, arrays, strict=True):
            sharding = strategy.placement.variable_sharding(variable)
            assert sharding is not None  # Only placements over a mesh have members that come and go.
            set_array(variable, put(value, sharding))
        return [array_of(variable) for variable in variables]

    current_group().together(run, outcome, adopted)
