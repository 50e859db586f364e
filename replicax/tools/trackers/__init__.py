"""Trackers: what a training logs, written once a job, for loops of one's own and for `Model.fit`.

| Tracker | Where it writes | Needs |
| --- | --- | --- |
| `CSV` | a table | nothing |
| `TensorBoard` | event files | `replicax[tensorboard]` |
| `WandB` | Weights & Biases, also offline | `wandb` |
| `MLflow` | an MLflow server, database or folder | `mlflow` or `mlflow-skinny` |

Every worker calls them; the chief writes.
"""

from replicax.tools.trackers.csv_table import CSV
from replicax.tools.trackers.event_files import TensorBoard
from replicax.tools.trackers.mlflow_runs import MLflow
from replicax.tools.trackers.tracker import Tracker
from replicax.tools.trackers.wandb_runs import WandB

__all__ = ["CSV", "MLflow", "TensorBoard", "Tracker", "WandB"]
