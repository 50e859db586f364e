"""Runs of MLflow."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from replicax.tools.trackers.tracker import Tracker, needed

_LONGEST_PARAMETER = 6000  # characters that MLflow takes


class MLflow(Tracker):
    """Writes a run of MLflow. It needs the package `mlflow`, or the smaller `mlflow-skinny`.

    The client is the tracker's own: MLflow's global active run is not touched.

    Args:
        experiment: The experiment; it is made if it does not exist.
        tracking_uri: The server, database or folder; None for what the environment says.
        run_name: The name of the run; MLflow chooses one if it is None.
        run_id: The id of a run that is gone on with, as after a restart.

    Raises:
        ArgumentError: mlflow is not installed; raised in every worker, before the first value.

    Example:
        >>> import replicax as rx
        >>> tracker = rx.trackers.MLflow("digits", tracking_uri="file:mlruns")  # doctest: +SKIP
        >>> tracker.log({"loss": 0.5}, step=0)  # doctest: +SKIP
    """

    def __init__(
        self,
        experiment: str,
        *,
        tracking_uri: str | None = None,
        run_name: str | None = None,
        run_id: str | None = None,
    ):
        super().__init__()
        self._mlflow = needed("mlflow", "rx.trackers.MLflow", "mlflow")
        self._experiment, self._uri, self._name, self._id = experiment, tracking_uri, run_name, run_id
        self._client: Any = None

    @property
    def run_id(self) -> str | None:
        """The id of the run; None before the first value, and in workers that are not the chief."""
        return self._id

    def _open(self) -> None:
        self._client = self._mlflow.tracking.MlflowClient(tracking_uri=self._uri)
        if self._id is not None:
            self._client.update_run(self._id, status="RUNNING")
            return
        found = self._client.get_experiment_by_name(self._experiment)
        number = self._client.create_experiment(self._experiment) if found is None else found.experiment_id
        self._id = self._client.create_run(number, run_name=self._name).info.run_id

    def _write(self, values: Mapping[str, float], step: int) -> None:
        metric, now = self._mlflow.entities.Metric, int(1000 * time.time())
        self._client.log_batch(self._id, metrics=[metric(name, value, now, step) for name, value in values.items()])

    def _write_hyperparameters(self, values: Mapping[str, Any]) -> None:
        param = self._mlflow.entities.Param
        params = [param(name, str(value)[:_LONGEST_PARAMETER]) for name, value in values.items()]
        self._client.log_batch(self._id, params=params)

    def _close(self) -> None:
        self._client.set_terminated(self._id)
