"""A save where workers come and go: each has the whole contents, and one of them writes, in a thread.

The writer is the first of those who have the contents and are still there. If it is lost, the next one begins anew, in
a directory of its own. A checkpoint appears under its name only when it is complete, and notes which save it is: by
that the others know, without a word from the writer, that it is done.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

import replicax.runtime.activity as activity
from replicax.checkpoint.contents import Contents, ToSave
from replicax.checkpoint.coordination import Coordination
from replicax.checkpoint.encoding import SavedArray
from replicax.checkpoint.metadata import read_metadata
from replicax.checkpoint.places import Place, new_name, staging
from replicax.checkpoint.writing import Save, check_there, commit, could_not_write, save_files
from replicax.cluster.exchange import ClosedError, Exchange, closing
from replicax.contracts.group import Group, as_arrays, as_messages, current_group
from replicax.errors import CheckpointError, ContextError
from replicax.runtime.ending import finish_at_end, finished
from replicax.runtime.transfer import host_copy

_log = logging.getLogger(__name__)
_NOTE = "save"  # the name in the metadata of the number that tells saves of one path apart
_SECONDS_BETWEEN_LOOKS = 0.05  # at what the writer has told, until the manager's `timeout`


def begin_elastic_save(
    name: str,
    where: object,
    path_of: Callable[[], Place],
    what: ToSave[Any],
    timeout_s: float,
    before: Callable[[], object],
    committed: Callable[[], object],
    failed: Callable[[], object],
) -> ElasticSave:
    """Begins a save, which all members begin together; `saving.begin_save` says what the arguments are."""
    group = current_group()
    found: list[tuple[Place, Contents]] = []

    def prepare() -> tuple[Place, str]:
        path, document = path_of(), what.document()
        found[:] = [(path, _on_host(what.contents()))]
        return path, document

    def begin() -> tuple[list[bytes], bool]:
        coordination = Coordination(name, timeout_s)
        save = Save(coordination, could_not_write(where))
        save.agree(prepare)
        coordination.end()
        return [save.name.encode()], True

    if group.is_chief:
        before()
    # The name tells this save from others. One that was interrupted, while others have gone on, gets it from them.
    (token,), took_part = group.attempt(
        lambda: group.executed(begin, lambda told: as_arrays(told[0]), lambda heard: (as_messages(heard), False))
    )
    path, contents = found[0] if found else (path_of(), _on_host(what.contents()))
    owners = [index for index in group.members if took_part or index not in group.world.newcomers]
    return ElasticSave(group, path, contents, token.decode(), owners, timeout_s, committed, failed)


class ElasticSave:
    """A save that has begun; `begin_elastic_save` makes it."""

    def __init__(
        self,
        group: Group,
        path: Place,
        contents: Contents,
        token: str,
        owners: list[int],
        timeout_s: float,
        committed: Callable[[], object],
        failed: Callable[[], object],
    ):
        self.path = path
        # The contents are on the host. The token tells this save from others to the same path. The owners are the
        # indices of the workers that have the contents, in the order in which they are to write.
        self._group, self._contents, self._token, self._owners = group, contents, token, owners
        self._timeout_s, self._committed, self._failed = timeout_s, committed, failed
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        group.changes.append(self._renew)
        finish_at_end(self, self.wait)
        self._begin_if_writer()

    def raise_failure(self) -> None:
        """Does nothing: all members raise it together, in `wait`."""

    def wait(self) -> None:
        """Returns when the checkpoint is complete, whichever worker has written it."""
        try:
            with activity.phase(activity.CHECKPOINT):
                self._group.attempt(self._await)
        except BaseException:
            self._failed()
            raise
        finally:
            finished(self)
            with contextlib.suppress(ValueError):
                self._group.changes.remove(self._renew)

    def _await(self) -> None:
        deadline, closed = time.monotonic() + self._timeout_s, closing()
        while not self._is_ended():
            if closed is not None and closed.is_set():
                raise ClosedError  # The next world has another writer, perhaps.
            if time.monotonic() > deadline:
                raise CheckpointError(
                    f"{could_not_write(self.path)}: after {self._timeout_s:g} s nothing was heard of "
                    f"worker:{self._owners[0]}, which writes it."
                )
            time.sleep(_SECONDS_BETWEEN_LOOKS)

    def _is_ended(self) -> bool:
        if self._thread is not None:
            self._thread.join(_SECONDS_BETWEEN_LOOKS)
            if self._failure is not None:
                raise self._explained(self._failure) from self._failure
            return not self._thread.is_alive()
        if self._is_complete():
            return True
        problem = self._exchange().decided(self._token) if len(self._group.world.members) > 1 else None
        if problem is not None:
            raise CheckpointError(f"{could_not_write(self.path)} by another worker: {problem.decode()}")
        return False

    def _explained(self, failure: BaseException) -> BaseException:
        if isinstance(failure, CheckpointError) or not isinstance(failure, Exception):
            return failure
        return CheckpointError(f"{could_not_write(self.path)}: {failure}")

    # The writer.

    def _renew(self) -> None:
        """Finds out who writes now; called when a world has begun."""
        world = self._group.world
        self._owners = [index for index in self._owners if index in world.members and index not in world.newcomers]
        self._begin_if_writer()
        if self._failure is not None:
            self._tell_failure()

    def _begin_if_writer(self) -> None:
        world = self._group.world
        if self._thread is None and self._owners[:1] == [world.members[world.index]]:
            self._thread = threading.Thread(target=self._write, name="replicax-checkpoint")
            self._thread.start()

    def _write(self) -> None:
        try:
            if not self._is_complete():
                self._write_alone()
        except BaseException as error:
            if not self._is_complete():  # Else another worker, which took this one for lost, has been faster.
                self._failure = error
                _log.error("%s", self._explained(error))
                self._tell_failure()
                return
        try:
            self._committed()
        except Exception:  # The others know that the checkpoint is complete, and have gone on.
            _log.exception("%s is complete; old checkpoints could not be deleted after it.", self.path)

    def _write_alone(self) -> None:
        contents = self._contents
        notes = {**contents.notes, _NOTE: self._token}
        target = staging(self.path, new_name(self.path))
        try:
            files = save_files(target, contents, is_chief=True, index=0)
            check_there(target, self.path, files, files, seconds=0.0)
            commit(target, dataclasses.replace(contents, notes=notes), files, processes=1)
        except BaseException:
            target.discard()
            raise

    def _is_complete(self) -> bool:
        try:
            return read_metadata(self.path).notes.get(_NOTE) == self._token
        except CheckpointError:
            return False  # There is none, or another one, which is just being replaced.

    def _tell_failure(self) -> None:
        world = self._group.world
        if len(world.members) > 1:
            with contextlib.suppress(ContextError):  # The world has just ended: it is told in the next one.
                self._exchange().decide(self._token, repr(self._failure)[:1000].encode())

    def _exchange(self) -> Exchange:
        world = self._group.world
        return Exchange("replicax/failed-saves", world.index, range(len(world.members)))


def _on_host(contents: Contents) -> Contents:
    """Returns contents whose arrays are on the host: in elastic training every worker has all of each."""
    arrays: Mapping[str, SavedArray] = {
        name: host_copy(array) if isinstance(array, jax.Array) else np.array(array)
        for name, array in contents.arrays.items()
    }
    return dataclasses.replace(contents, arrays=arrays)
