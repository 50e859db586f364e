"""Notes of an estimator's training on disk: the evaluations, and where it has ended."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from replicax.checkpoint.checkpoint_follower import Found
from replicax.checkpoint.numbered import numbered
from replicax.checkpoint.places import Place, absolute, replace
from replicax.errors import CheckpointError

_EVALUATIONS = "followed.jsonl"
_ENDED = "training_ended.json"

Metrics = Mapping[str, float]
"""Losses and metrics by name."""

Result = tuple[Metrics | None, Sequence[str | None]]
"""The metrics of the last evaluation and the answer of each exporter; None and nothing where none was made."""


class Evaluated(NamedTuple):
    """One evaluation."""

    checkpoint: str
    version: tuple[int, ...]  # when it was written: another training in the folder may write one of the same name
    metrics: Metrics  # with `global_step`
    exports: Sequence[str | None]  # what each exporter returned


class Journal:
    """The evaluations that were done: a file with a line for each, which an evaluator that is restarted reads again."""

    def __init__(self, directory: Place):
        self._file = directory / _EVALUATIONS
        self.entries: list[Evaluated] = _read(self._file)  # the oldest first

    def find(self, found: Found) -> Evaluated | None:
        """Returns the last evaluation of a checkpoint; None if there was none."""
        return next((each for each in reversed(self.entries) if _is_of(each, found)), None)

    def add(self, entry: Evaluated) -> None:
        """Writes an evaluation; it is on disk when this returns."""
        self.entries.append(entry)
        lines = [json.dumps({**each._asdict(), "metrics": plain(each.metrics)}) for each in self.entries]
        replace(self._file, "\n".join([*lines, ""]).encode())


def checkpoints(directory: Place) -> list[Found]:
    """Returns the complete checkpoints of a training, in the order of their steps, each with when it was written."""
    found = []
    for each in numbered(directory):
        try:
            found.append(Found(each.path, each.number, (each.written_ns,)))
        except (FileNotFoundError, CheckpointError):
            continue  # It was deleted meanwhile.
    return found


def note_end(directory: Place, step: int) -> None:
    """Notes that the training in a folder has ended with a step, so that the evaluator waits for no further one."""
    note = {"global_step": step, "time": time.time()}
    replace(directory / _ENDED, json.dumps(note).encode())


def forget_end(directory: Place) -> None:
    """Takes back `note_end`: the training goes on."""
    (directory / _ENDED).unlink(missing_ok=True)


def noted_end(directory: Place, since: float = 0.0) -> int | None:
    """Returns the step with which the training has ended; None if that was not noted."""
    file = directory / _ENDED
    try:
        note = json.loads(file.read_bytes())
    except FileNotFoundError:
        return None
    # An older note is of an earlier training, which this one goes on from; those of earlier versions have no time.
    return None if note.get("time", 0.0) < since else int(note["global_step"])


def _is_of(entry: Evaluated, found: Found) -> bool:
    return absolute(entry.checkpoint).name == found.name and entry.version == found.version


def _read(file: Place) -> list[Evaluated]:
    try:
        written = [json.loads(line) for line in file.read_bytes().splitlines()]
    except FileNotFoundError:
        return []
    return [
        Evaluated(each["checkpoint"], tuple(each["version"]), each["metrics"], tuple(each["exports"]))
        for each in written
    ]


def plain(metrics: Metrics) -> dict[str, object]:
    """Returns metrics as JSON can hold them: numbers, and lists for arrays."""
    return {name: np.asarray(value).tolist() for name, value in metrics.items()}
