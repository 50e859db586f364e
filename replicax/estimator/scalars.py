"""Scalars for TensorBoard, and evaluations in a file that can be read again."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from replicax.checkpoint.places import Directory, absolute, append
from replicax.checks import explained
from replicax.errors import ArgumentError
from replicax.keras.tensorboard import _EventFiles

_log = logging.getLogger("replicax.estimator")
_EVALUATIONS = "eval_metrics.jsonl"


class ScalarWriter:
    """Writes scalars of one run, if tensorboardX is installed; a context manager, which closes the files."""

    def __init__(self, folder: str, is_chief: bool = True):
        self._files: _EventFiles | None = None
        if not is_chief:
            return
        if not isinstance(absolute(folder), Path):
            _log.info("No scalars are written for TensorBoard: it reads files on a disk, and %s is in a store.", folder)
            return
        try:
            self._files = _EventFiles(folder)
        except ArgumentError as error:
            _log.info("No scalars are written for TensorBoard: %s", error)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        if self._files is not None:
            self._files.event("", step).scalars("", values)

    def __enter__(self) -> ScalarWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._files is not None:
            self._files.close()


def note_evaluation(folder: str, values: Mapping[str, object]) -> None:
    """Adds an evaluation to the file in its folder, from which `read_eval_metrics` reads them."""
    line = json.dumps(
        {
            name: value if isinstance(value, int) else float(value)
            for name, value in values.items()
            if isinstance(value, (int, float))
        }
    )
    append(absolute(folder) / _EVALUATIONS, f"{line}\n".encode())


@explained
def read_eval_metrics(eval_dir: Directory) -> dict[int, dict[str, float]]:
    """Returns the evaluations in the folder of `Estimator.eval_dir()`: the loss and metrics by global step.

    Of several evaluations of one step the last counts; steps are in ascending order. Without a folder there are none.

    Example:
        >>> import tempfile
        >>> rx.estimator.read_eval_metrics(tempfile.mkdtemp())
        {}
    """
    try:
        written = (absolute(eval_dir) / _EVALUATIONS).read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    found: dict[int, dict[str, float]] = {}
    for line in written.splitlines(keepends=True):
        if not line.endswith("\n"):  # being written
            continue
        values = json.loads(line)
        found[int(values.pop("global_step"))] = values
    return dict(sorted(found.items()))
