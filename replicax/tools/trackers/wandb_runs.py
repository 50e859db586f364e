"""Runs of Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replicax.tools.trackers.tracker import Tracker, needed


class WandB(Tracker):
    """Writes a run of Weights & Biases. It needs the package `wandb`.

    Values have `step` as their x-axis. Where workers come and go, or a job may be restarted, give the run an `id`:
    whoever writes next goes on with it.

    Args:
        project: The project.
        name: The name of the run; W&B chooses one if it is None.
        id: The id of the run; with it a run is gone on with, if there is one.
        mode: `"online"`, `"offline"` (files are written, for `wandb sync` later) or `"disabled"`; None for what the
            environment says.
        dir: Where W&B writes its files; None for the present folder.
        options: More arguments of `wandb.init`.

    Raises:
        ArgumentError: wandb is not installed; raised in every worker, before the first value.

    Example:
        >>> import tempfile
        >>> import replicax as rx
        >>> tracker = rx.trackers.WandB("digits", mode="offline", dir=tempfile.mkdtemp())  # doctest: +SKIP
        >>> tracker.log({"loss": 0.5}, step=0)  # doctest: +SKIP
    """

    def __init__(
        self,
        project: str,
        *,
        name: str | None = None,
        id: str | None = None,
        mode: str | None = None,
        dir: str | None = None,
        **options: Any,
    ):
        super().__init__()
        self._wandb = needed("wandb", "rx.trackers.WandB", "wandb")
        given = {"name": name, "id": id, "mode": mode, "dir": dir}
        self._options = {"project": project} | {key: value for key, value in given.items() if value is not None}
        self._options |= options
        self._run: Any = None

    def _open(self) -> None:
        begins_alone = {"reinit": "create_new"}  # A script may have a run of its own, or several trackers.
        resumes = {"resume": "allow"} if "id" in self._options else {}
        if self._goes_on and self._run is not None and "id" not in self._options:
            resumes = {"id": self._run.id, "resume": "allow"}
        self._run = self._wandb.init(**begins_alone | resumes | self._options)
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def _write(self, values: Mapping[str, float], step: int) -> None:
        self._run.log({**values, "step": step})

    def _write_hyperparameters(self, values: Mapping[str, Any]) -> None:
        self._run.config.update(dict(values), allow_val_change=True)

    def _close(self) -> None:
        self._run.finish()
