"""A save that all processes begin together; it is written before the call returns, or in the background.

Each process writes what its devices hold, and the chief commits (`writing.py`). Where members of the group may be lost,
one of them writes all, and the next one does when it is lost (`elastic_save.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from replicax.checkpoint.background import BackgroundSave
from replicax.checkpoint.contents import ToSave
from replicax.checkpoint.coordination import Coordination
from replicax.checkpoint.copies import copied
from replicax.checkpoint.places import Place
from replicax.checkpoint.same_contents import document_of
from replicax.checkpoint.writing import PREPARED, Save, could_not_write
from replicax.contracts.group import current_group
from replicax.errors import CheckpointError, ReplicaxError


class RunningSave(Protocol):
    """A save that has begun."""

    def wait(self) -> None:
        """Returns when it is complete. A failure is raised once."""

    def raise_failure(self) -> None:
        """Raises the failure of a save that is known to have failed, if it has not been raised before."""


def _nothing() -> None:
    pass


def begin_save(
    name: str,  # what is done, for messages
    where: object,  # the place, for messages
    path_of: Callable[[], Place],  # raises an error if nothing can be written there
    what: ToSave[Any],
    timeout_s: float,  # for the other processes
    *,
    in_background: bool = False,  # whether it returns when the values have been copied
    before: Callable[[], object] = _nothing,  # called by the chief before it writes, ...
    committed: Callable[[], object] = _nothing,  # ... and when the checkpoint is complete, before the others go on
    failed: Callable[[], object] = _nothing,  # called by each process
) -> RunningSave | None:
    """Begins a save; all processes call it together. Returns None if it is complete already."""
    with _explained(where, failed):
        if current_group().may_change:
            from replicax.checkpoint.elastic_save import begin_elastic_save  # Loaded in elastic jobs only.

            return begin_elastic_save(name, where, path_of, what, timeout_s, before, committed, failed)
        coordination = Coordination(name, timeout_s)
        save = Save(coordination, could_not_write(where))
        if not in_background:
            if coordination.is_chief:
                before()
            # Before any value is read: that may be a computation of all of them.
            save.agree(lambda: (path_of(), what.document()))
            save.write(what.contents, committed)
            return None
        path = path_of()
        contents = coordination.tried(PREPARED, what.contents, could_not_write(where))
        contents = dataclasses.replace(contents, arrays=copied(contents.arrays))

    def write() -> None:
        with _explained(where, failed):
            if coordination.is_chief:
                before()
            save.agree(lambda: (path, document_of(contents.arrays, contents.state, contents.step)))
            save.write(lambda: contents, committed)

    return BackgroundSave(path.parent, write)


@contextlib.contextmanager
def _explained(where: object, failed: Callable[[], object]) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        failed()
        if isinstance(error, ReplicaxError) or not isinstance(error, Exception):
            raise
        raise CheckpointError(f"{could_not_write(where)}: {error!r}") from error
