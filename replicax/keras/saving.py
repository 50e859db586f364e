"""Saving: a file is there whole, or not at all, and on all workers when the call returns."""

from __future__ import annotations

import itertools
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import replicax.context as context
from replicax.contracts.variable_access import VariableLike, array_of, name_of
from replicax.errors import CheckpointError
from replicax.variables import collected, lies_in_several_processes

if TYPE_CHECKING:
    from replicax.checkpoint.coordination import Coordination

_FILES = (".keras", ".h5")
_END = "end"


def write_atomically(path: Any, write: Callable[[Any], Any]) -> Any:
    """Calls `write` with a name beside `path` and then gives the file its name, replacing an older one."""
    if not str(path).endswith(_FILES) or "://" in str(path):
        return write(path)  # Folders and addresses such as `gs://...` cannot be replaced in one step.
    target = pathlib.Path(path)
    temporary = target.with_name(f".saving-{os.getpid()}-{target.name}")
    try:
        result = write(str(temporary))
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    return result


class _ServedReader:
    """The chief, as it reads variables of which other workers hold shards: it tells them which is next."""

    def __init__(self, variables: Sequence[VariableLike], coordination: Coordination):
        self._numbers = {id(variable): number for number, variable in enumerate(variables)}
        self._coordination, self._reads = coordination, itertools.count()

    def note_read(self, variable: VariableLike) -> None:
        """Tells the others to send their shards of a variable."""
        if id(variable) not in self._numbers:
            raise CheckpointError(
                f"{self._coordination.name}: {name_of(variable)!r} has shards on other workers, and is no variable of "
                "the model or its optimizer. Let all workers read it (`numpy()`) before."
            )
        self._tell(str(self._numbers[id(variable)]))

    def end(self) -> None:
        """Tells the others that nothing more is read."""
        self._tell(_END)

    def _tell(self, what: str) -> None:
        self._coordination.from_chief(f"shards {next(self._reads)}", what)


def write_together(
    path: Any,
    write: Callable[[], Any],
    is_chief: bool,
    variables: Sequence[VariableLike] = (),
    called: str = "",
) -> Any:
    """Lets the chief `write` for all workers, which go on when it is done; returns its result, None on the others."""
    from replicax.checkpoint.coordination import Coordination
    from replicax.checkpoint.writing import TIMEOUT_S

    coordination = Coordination(f"Saving the model to {path}", TIMEOUT_S, called=called)
    # They are in the same order on all workers, which send their shards of one variable at a time, as the chief comes
    # to it: no worker has more than one of them whole.
    spread = [variable for variable in variables if lies_in_several_processes(array_of(variable))]
    coordination.check_same_place()
    coordination.check_same("number of sharded variables", str(len(spread)))

    def write_served() -> Any:
        reader = _ServedReader(spread, coordination)
        try:
            with context.entered(reader=reader):
                return write()
        finally:
            reader.end()

    def serve() -> None:
        for read in itertools.count():
            told = coordination.from_chief(f"shards {read}")
            if told == _END:
                return
            collected(array_of(spread[int(told)]))

    action = (write_served if spread else write) if is_chief else (serve if spread else lambda: None)
    result = coordination.run("written", action, f"The model could not be saved to {path}")
    coordination.end()
    return result
