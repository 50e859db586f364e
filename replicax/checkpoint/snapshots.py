"""Snapshots in memory: a training that is started again goes on from a moment ago, not from its newest checkpoint.

`replicax run --restarts` keeps a folder in the memory of the machine for as long as the job lasts, through all of its
attempts (`job/launching/snapshot_memory.py`). Between the checkpoints on disk a manager writes one there every so
often, with the same code: so it is complete or not there, has checksums, and holds the parts of all processes. There is
one at a time.

How often follows from its cost. A snapshot is written in the background, and the next is due when two hundred times the
seconds have passed that it took, at least one second: it takes less than a hundredth of the training's time. Since all
processes must take a snapshot at the same step, they count calls: with a snapshot they agree on the number of calls
until the next but one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import math
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

import replicax.runtime.activity as activity
from replicax.checkpoint.checkpoint import Checkpoint, restore_within
from replicax.checkpoint.contents import Contents
from replicax.checkpoint.coordination import Coordination
from replicax.checkpoint.copies import copied
from replicax.checkpoint.load_status import LoadStatus
from replicax.checkpoint.numbered import name_of, numbered
from replicax.checkpoint.places import Place, delete
from replicax.checkpoint.same_contents import document_of
from replicax.checkpoint.writing import Save, could_not_write
from replicax.checks.environment_names import SNAPSHOTS
from replicax.errors import CheckpointError
from replicax.runtime.ending import finish_at_end

_COST = 0.005  # of the training's time; what runs beside it is slowed down a little, too
_LEAST_SECONDS = 1.0  # between two snapshots
_FIRST_CALLS, _FIRST_PAUSE = 4, 16  # The first calls compile.
_MOST_CALLS = 2**20
_ROOM = 1.5  # times the size of a snapshot that must be free
_TRIED = "tried"

_log = logging.getLogger(__name__)


class RestoredSnapshot(NamedTuple):
    """A snapshot from which a training goes on."""

    step: int
    status: LoadStatus


class MemorySnapshots:
    """The snapshots of one training in the memory of this machine, where all processes of the job see the same."""

    def __init__(
        self,
        directory: Place,
        parent: Path | None,
        clock: Callable[[], float] = time.monotonic,
        timeout_s: float = 60.0,  # Whoever comes later is stuck, or has lost its network: the training can do without.
    ):
        name = hashlib.sha256(str(directory).encode()).hexdigest()[:16]
        self._folder, self._is_on = (parent or Path()) / name, parent is not None
        self._clock, self._timeout_s = clock, timeout_s
        self.restored_path: Path | None = None  # of the snapshot from which the training goes on
        self._calls, self._due, self._pause = 0, _FIRST_CALLS, _FIRST_PAUSE
        self._begun: tuple[int, float] | None = None  # The call and the time of the last snapshot.
        self._thread: threading.Thread | None = None
        self._agreed: int | None = _FIRST_PAUSE

    @classmethod
    def of(cls, directory: Place) -> MemorySnapshots:
        """Returns those of the training with a folder of checkpoints, in the memory that the launcher keeps, if any."""
        parent = os.environ.get(SNAPSHOTS, "")
        return cls(directory, Path(parent) if os.path.isabs(parent) and os.path.isdir(parent) else None)

    def path(self, step: int) -> Path:
        return self._folder / name_of(step, None)

    def is_due(self) -> bool:
        """Counts a call; returns whether a snapshot is to be taken at it. It is the same in all processes."""
        self._calls += 1
        return self._is_on and self._calls >= self._due

    def take(self, step: int, contents: Callable[[], Contents]) -> None:
        """Takes a snapshot; it is written in the background. A failure is logged: the training goes on without."""
        self.wait()
        if self._agreed is None:
            self._due = 2**62
            return
        now = self._clock()
        calls, seconds = (0, 0.0) if self._begun is None else (self._calls - self._begun[0], now - self._begun[1])
        self._begun, self._due = (self._calls, now), self._calls + self._agreed
        name = f"Taking a snapshot of step {step} in {self._folder}"
        coordination = Coordination(name, self._timeout_s, kind="snapshot")
        raised: Exception | None = None
        found = Contents({})
        try:
            found = contents()  # It may compute together with the other processes.
            found = dataclasses.replace(found, arrays=copied(found.arrays))
        except Exception as error:
            raised = error
        arguments = (step, found, coordination, raised, now, seconds / calls if calls else 0.0)
        self._agreed = None  # Unless the thread sets it.
        self._thread = threading.Thread(target=self._write, args=arguments, name="replicax-snapshot", daemon=True)
        self._thread.start()
        finish_at_end(self._thread, self.wait)

    @activity.phase(activity.CHECKPOINT)
    def wait(self) -> None:
        """Returns when nothing is being written any more."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def latest(self) -> int | None:
        """Returns the step of the snapshot; None if there is none, or the training was restored from it before."""
        found = numbered(self._folder)
        if not found:
            return None
        step = found[-1].number
        # A training that fails again and again after it was restored from a snapshot thus goes back to its checkpoint.
        tried = self._folder / _TRIED
        return None if tried.exists() and tried.read_text(encoding="utf-8") == str(step) else step

    def restore(
        self,
        checkpoint: Checkpoint,
        on_disk: Callable[[], int | None],
        restored: Callable[[int], object],
        timeout_s: float,
    ) -> RestoredSnapshot | None:
        """Restores the snapshot if it is newer than all checkpoints; all processes call it together."""
        if not self._is_on:
            return None
        coordination = Coordination(f"Looking for a snapshot in {self._folder}", timeout_s)
        newer = ""
        if coordination.is_chief:
            found, newest = self.latest(), on_disk()
            newer = str(found) if found is not None and (newest is None or found > newest) else ""
        step = coordination.from_chief("latest snapshot", newer)
        if not step:
            return None
        try:
            status = restore_within(timeout_s, checkpoint, self.path(int(step)))
        except CheckpointError as error:  # It does not fit the objects, say: all processes go on from a checkpoint.
            _log.warning("The snapshot in memory of step %s is not used, but the newest checkpoint: %s", step, error)
            return None
        if coordination.is_chief:
            (self._folder / _TRIED).write_text(step, encoding="utf-8")
        self.restored_path = self.path(int(step))
        restored(int(step))
        return RestoredSnapshot(int(step), status)

    def clear(self) -> None:
        """Deletes the snapshot, since the training goes on from somewhere else."""
        self.restored_path = None
        if self._is_on and jax.process_index() == 0:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _write(
        self,
        step: int,
        contents: Contents,
        coordination: Coordination,
        raised: Exception | None,
        begun: float,
        seconds_per_call: float,
    ) -> None:
        path = self.path(step)
        told: list[tuple[float, float]] = []
        try:
            save = Save(coordination, could_not_write(path))
            save.agree(lambda: (path, self._checked(contents, raised)))
            save.write(
                lambda: contents,
                lambda: self._delete_others(step),
                told.extend,
                lambda: [self._clock() - begun, seconds_per_call],
            )
        except Exception as error:
            _log.info("No snapshots are taken in memory any more: %s", error)
            return
        costs, each_call = zip(*told, strict=True)
        if max(each_call) > 0:
            self._pause = math.ceil(max(_LEAST_SECONDS, max(costs) / _COST) / max(each_call))
        self._agreed = max(1, min(self._pause, _MOST_CALLS))

    def _checked(self, contents: Contents, raised: Exception | None) -> str:
        """Returns the document of what is to be written, if there is something, and room for it."""
        if raised is not None:
            raise raised
        self._folder.mkdir(mode=0o700, exist_ok=True)
        size = sum(np.dtype(each.dtype).itemsize * np.size(each) for each in contents.arrays.values())
        free = shutil.disk_usage(self._folder).free
        if free < _ROOM * size:
            raise CheckpointError(f"{self._folder} has {free} bytes left, and a snapshot has {size}.")
        return document_of(contents.arrays, contents.state, contents.step)

    def _delete_others(self, step: int) -> None:
        for each in numbered(self._folder):
            if each.number != step:
                delete(each.path)
