"""`rx.estimator`: training that roles drive, after `tf.estimator`.

`Estimator` (`estimator.py`) holds a model function (`model_fn.py`) and a `RunConfig`. A call of `train`
(`training.py`), `evaluate` (`evaluation.py`) or `predict` (`prediction.py`) builds the model under the strategy
(`distribution.py`, `built_model.py`) and runs its steps (`steps.py`) in a loop (`loops.py`; `scheduled.py` with
parameter servers) between hooks (`hooks.py`). `train_and_evaluate` (`train_and_evaluate.py`) does what the role
(`roles.py`) of the process is; the evaluator (`evaluating.py`) follows the checkpoints and calls the exporters.
"""

from typing import TYPE_CHECKING

from replicax.contracts.advice import not_found
from replicax.estimator.basic_hooks import (
    FinalOpsHook,
    LoggingTensorHook,
    NanTensorHook,
    StepCounterHook,
    StopAtStepHook,
    SummarySaverHook,
)
from replicax.estimator.checkpoint_saver import CheckpointSaverHook, CheckpointSaverListener
from replicax.estimator.distribution import DistributeConfig
from replicax.estimator.early_stopping import (
    make_early_stopping_hook,
    stop_if_higher_hook,
    stop_if_lower_hook,
    stop_if_no_decrease_hook,
    stop_if_no_increase_hook,
)
from replicax.estimator.estimator import Estimator, model_to_estimator
from replicax.estimator.exporters import BestExporter, Exporter, FinalExporter, LatestExporter
from replicax.estimator.hooks import Hook, HookContext
from replicax.estimator.mode_keys import ModeKeys
from replicax.estimator.run_config import RunConfig
from replicax.estimator.scalars import read_eval_metrics
from replicax.estimator.spec import EstimatorSpec
from replicax.estimator.specs import EvalSpec, TrainSpec
from replicax.estimator.train_and_evaluate import train_and_evaluate
from replicax.estimator.warm_start import WarmStartSettings

__all__ = [
    "BestExporter",
    "CheckpointSaverHook",
    "CheckpointSaverListener",
    "DistributeConfig",
    "Estimator",
    "EstimatorSpec",
    "EvalSpec",
    "Exporter",
    "FinalExporter",
    "FinalOpsHook",
    "Hook",
    "HookContext",
    "LatestExporter",
    "LoggingTensorHook",
    "ModeKeys",
    "NanTensorHook",
    "RunConfig",
    "StepCounterHook",
    "StopAtStepHook",
    "SummarySaverHook",
    "TrainSpec",
    "WarmStartSettings",
    "make_early_stopping_hook",
    "model_to_estimator",
    "read_eval_metrics",
    "stop_if_higher_hook",
    "stop_if_lower_hook",
    "stop_if_no_decrease_hook",
    "stop_if_no_increase_hook",
    "train_and_evaluate",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise not_found("replicax.estimator", name)
