"""TensorBoard's event files for loops of one's own, without TensorFlow."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from replicax.checks import checked
from replicax.errors import ArgumentError
from replicax.keras.tensorboard import _EventFiles
from replicax.tools.trackers.tracker import Tracker


@checked
class TensorBoard(Tracker):
    """Writes event files, which `tensorboard --logdir` shows. It needs `replicax[tensorboard]`, and no TensorFlow.

    For `fit`, `rx.keras.TensorBoard` knows more: histograms, profiles, validation as a run of its own.

    Args:
        log_dir: The folder. A worker that goes on for a lost chief adds a file.

    Raises:
        ArgumentError: tensorboardX is not installed, or the folder cannot be written to.

    Example:
        >>> import tempfile
        >>> import replicax as rx
        >>> with rx.trackers.TensorBoard(tempfile.mkdtemp()) as tracker:
        ...     tracker.log_hyperparameters({"learning_rate": 1e-3})
        ...     tracker.log({"loss": 0.5}, step=0)
    """

    def __init__(self, log_dir: str | os.PathLike[str]):
        super().__init__()
        folder = os.fspath(log_dir)
        if not isinstance(folder, str) or not folder:
            raise ArgumentError(f"`log_dir` is the path of a folder, got {log_dir!r}.")
        self._files = _EventFiles(folder)

    def _open(self) -> None:
        self._files.open("")

    def _write(self, values: Mapping[str, float], step: int) -> None:
        self._files.event("", step).scalars("", values)

    def _write_hyperparameters(self, values: Mapping[str, Any]) -> None:
        text = json.dumps(dict(values), indent=2, default=str)
        self._files.open("").add_text("hyperparameters", f"```json\n{text}\n```", 0)

    def _close(self) -> None:
        self._files.close()
