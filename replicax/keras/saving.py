"""Saving: a file is there whole, or not at all, and on all workers when the call returns."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax

from replicax.host import PlacementLike
from replicax.program.handover import store_values
from replicax.runtime.transfer import put
from replicax.variable_access import VariableLike, array_of, is_per_replica_variable

_FILES = (".keras", ".h5")


def write_atomically(path: Any, write: Callable[[Any], Any]) -> Any:
    """Calls `write` with a name beside `path` and then gives the file its name, replacing an older one.

    If writing fails, what was at `path` before is still there, and nothing else is left. Folders and addresses such as
    `gs://...` are written to directly: they cannot be replaced in one step.
    """
    if not str(path).endswith(_FILES) or "://" in str(path):
        return write(path)
    target = pathlib.Path(path)
    temporary = target.with_name(f".saving-{os.getpid()}-{target.name}")
    try:
        result = write(str(temporary))
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    return result


def gather_sharded(variables: Sequence[VariableLike], placement: PlacementLike) -> None:
    """Gives each worker the whole values of variables of which it has a shard; all workers call this together."""
    sharded = [
        variable
        for variable in variables
        if isinstance(value := array_of(variable), jax.Array)
        and not value.is_fully_addressable
        and not value.is_fully_replicated
        and not is_per_replica_variable(variable)
    ]
    store_values(sharded, [put(array_of(variable), placement.home) for variable in sharded])


def write_together(path: Any, write: Callable[[], Any], is_chief: bool) -> Any:
    """Lets the chief `write` for all workers, who hold the same values; all of them go on when it is done.

    Args:
        path: Where to, for messages. Only the chief's counts.
        write: Writes.
        is_chief: Whether this worker is the chief.

    Returns:
        What `write` returns; None on the other workers.

    Raises:
        CheckpointError: It could not be written, or some worker did not come: all of them must save together.
    """
    from replicax.checkpoint.coordination import Coordination
    from replicax.checkpoint.writing import TIMEOUT_S

    coordination = Coordination(f"Saving the model to {path}", TIMEOUT_S)
    result = coordination.run(
        "written", lambda: write() if is_chief else None, f"The model could not be saved to {path}"
    )
    coordination.end()
    return result
