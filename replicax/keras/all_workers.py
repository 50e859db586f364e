"""The things that all workers do together outside of programs: telling values, and waiting for what the chief writes.

Where workers may be lost meanwhile, each of these is a call of all of them, made again by those who are left.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import replicax.runtime.activity as activity
from replicax.cluster.exchange import exchanged
from replicax.contracts.strategy import StrategyBase
from replicax.contracts.variable_access import VariableLike, array_of, set_array
from replicax.contracts.worlds import Worlds, running
from replicax.errors import CheckpointError, WorkersDisagreeError
from replicax.runtime.transfer import host_copy, put

_BLOCK = 1 << 20


def is_elastic(strategy: StrategyBase) -> bool:
    """Returns whether workers of a strategy may come and go."""
    return strategy.placement.worlds is not None


def has_workers(strategy: StrategyBase) -> bool:
    """Returns whether a strategy has devices in several processes, or may have them later."""
    return strategy.placement.spans_processes or is_elastic(strategy)


def told_by_all(what: str, value: Any, before: Callable[[], None] | None = None) -> list[Any]:
    """Returns the values of all workers, in their order, after all have come here."""
    # Through host memory: a collective would mix with one that a worker has come to elsewhere.
    message = json.dumps({"what": what, "value": value}).encode()

    def exchange() -> list[bytes]:
        if before is not None:  # also when workers are lost, and the others come here again
            before()
        with activity.phase(activity.WAIT, what):
            return exchanged(message)

    worlds = running()
    # A newcomer that the others have not taken in is alone.
    messages = exchange() if worlds is None or not worlds.is_taken_in else _survived(worlds, exchange)
    found = [_read(each) for each in messages]
    whats = {f"process {i}": [str(each.get("what", "something else"))] for i, each in enumerate(found)}
    if len({told for (told,) in whats.values()}) > 1:
        raise WorkersDisagreeError("things to do together", whats)
    return [each["value"] for each in found]


def _survived(worlds: Worlds, exchange: Callable[[], list[bytes]]) -> list[bytes]:
    """Returns the messages of an exchange of all workers, which some may not live to see the end of."""

    def outcome(messages: list[bytes]) -> list[np.ndarray]:
        return [np.frombuffer(message, np.uint8) for message in messages]

    def adopted(arrays: list[np.ndarray]) -> list[bytes]:
        return [array.tobytes() for array in arrays]

    return worlds.attempt(lambda: worlds.executed(exchange, outcome, adopted))


def _read(message: bytes) -> dict[str, Any]:
    try:
        found = json.loads(message)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def check_same_names(names: list[str], worker: str) -> None:
    """Checks that all workers log values of the same names; all of them call this together."""
    told = told_by_all("the names of logs", [worker, names])
    logged = [own for _, own in told]
    if all(own == logged[0] for own in logged):
        return
    common = set(logged[0]).intersection(*logged[1:])
    odd = {other: sorted(set(own) - common) for other, own in told}
    raise WorkersDisagreeError("logs", {other: own for other, own in odd.items() if own})


def check_same_file(what: str, path: str | os.PathLike[str]) -> None:
    """Checks that all workers are about to read the same bytes; all of them call this together."""
    told = told_by_all(what, [str(path), _digest(path)])
    if any(digest != told[0][1] for _, digest in told):
        shown = "; ".join(f"process {i}: {name}, {digest}" for i, (name, digest) in enumerate(told))
        raise CheckpointError(
            f"{what}: the workers have different files ({shown}). All must read the same values, or they would train "
            "models of their own: give all of them the same file, at a place that all of them see."
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
    worlds = running()
    if worlds is None or not worlds.is_taken_in:
        strategy.placement.make_alike(variables)
        return

    def run() -> list[Any]:
        if strategy.placement.spans_processes:  # Else this process alone has them.
            strategy.placement.make_alike(variables)
        return [array_of(variable) for variable in variables]

    def outcome(arrays: list[Any]) -> list[np.ndarray]:
        return [host_copy(array) for array in arrays]

    def adopted(arrays: list[np.ndarray]) -> list[Any]:
        for variable, value in zip(variables, arrays, strict=True):
            sharding = strategy.placement.variable_sharding(variable)
            assert sharding is not None  # Only placements over a mesh have worlds.
            set_array(variable, put(value, sharding))
        return [array_of(variable) for variable in variables]

    worlds.attempt(lambda: worlds.executed(run, outcome, adopted))
