"""Notes of an estimator's training on disk: the evaluations, and where it has ended."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from replicax.checkpoint.checkpoint_follower import Found
from replicax.checkpoint.integrity import write_durably
from replicax.checkpoint.metadata import FILE as METADATA
from replicax.checkpoint.numbered import numbered

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

    def __init__(self, directory: Path):
        self._file = directory / _EVALUATIONS
        self.entries: list[Evaluated] = _read(self._file)  # the oldest first

    def find(self, found: Found) -> Evaluated | None:
        """Returns the last evaluation of a checkpoint; None if there was none."""
        return next((each for each in reversed(self.entries) if _is_of(each, found)), None)

    def add(self, entry: Evaluated) -> None:
        """Writes an evaluation; it is on disk when this returns."""
        self.entries.append(entry)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps({**each._asdict(), "metrics": plain(each.metrics)}) for each in self.entries]
        replace_file(self._file, "\n".join([*lines, ""]))


def checkpoints(directory: Path) -> list[Found]:
    """Returns the complete checkpoints of a training, in the order of their steps, each with when it was written."""
    found = []
    for each in numbered(directory):
        try:
            written = (each.path / METADATA).stat().st_mtime_ns
        except FileNotFoundError:
            continue  # It was deleted meanwhile.
        found.append(Found(each.path, each.number, (written,)))
    return found


def note_end(directory: Path, step: int) -> None:
    """Notes that the training in a folder has ended with a step, so that the evaluator waits for no further one."""
    directory.mkdir(parents=True, exist_ok=True)
    replace_file(directory / _ENDED, json.dumps({"global_step": step}))


def forget_end(directory: Path) -> None:
    """Takes back `note_end`: the training goes on."""
    (directory / _ENDED).unlink(missing_ok=True)


def noted_end(directory: Path, since: float = 0.0) -> int | None:
    """Returns the step with which the training has ended; None if that was not noted."""
    file = directory / _ENDED
    try:
        # An older note is of an earlier training, which this one goes on from.
        if file.stat().st_mtime < since:
            return None
        return int(json.loads(file.read_text(encoding="utf-8"))["global_step"])
    except FileNotFoundError:
        return None


def _is_of(entry: Evaluated, found: Found) -> bool:
    return Path(entry.checkpoint).name == found.name and entry.version == found.version


def _read(file: Path) -> list[Evaluated]:
    if not file.exists():
        return []
    written = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [
        Evaluated(each["checkpoint"], tuple(each["version"]), each["metrics"], tuple(each["exports"]))
        for each in written
    ]


def plain(metrics: Metrics) -> dict[str, object]:
    """Returns metrics as JSON can hold them: numbers, and lists for arrays."""
    return {name: np.asarray(value).tolist() for name, value in metrics.items()}


def replace_file(file: Path, text: str) -> None:
    """Writes a file, in the place of an older one, which is there until the new one is complete."""
    unfinished = file.with_name(f".{file.name}.unfinished-{os.getpid()}")
    try:
        write_durably(unfinished, text)
        os.replace(unfinished, file)
    finally:
        unfinished.unlink(missing_ok=True)
