"""`train_and_evaluate` from a client, such as a laptop: workers elsewhere train, with an evaluator beside the first.

The estimator and the specs are sent to the workers; `model_dir` is a folder that all of them see. The evaluator is a
process of its own on the first worker's machine, as `replicax run --evaluator` has one. Errors of the workers and of
the evaluator are raised in the client.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, cast

from replicax.errors import ClusterError
from replicax.estimator.evaluator_process import Beside
from replicax.job.processes.call import Call, payload_of
from replicax.strategies import MultiWorkerMirroredStrategy, Strategy

if TYPE_CHECKING:
    from replicax.estimator.distribution import StrategyOrMaker
    from replicax.estimator.estimator import Estimator
    from replicax.estimator.journal import Result
    from replicax.estimator.run_config import RunConfig
    from replicax.estimator.specs import EvalSpec, TrainSpec

    Train = Callable[[Estimator, TrainSpec], Result]
    Evaluate = Callable[[Estimator, TrainSpec, EvalSpec, float], Result]  # with the time when the training began


def train_and_evaluate_there(
    estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec, train: Train, evaluate: Evaluate
) -> Result:
    """Trains on the workers of a client, evaluates beside the first of them; returns the last evaluation."""
    _check_strategy(estimator.config.train_distribute)
    evaluation = payload_of(Call(evaluate, (estimator, train_spec, eval_spec, time.time())))
    with _client(estimator.config) as client:
        return client.remote(_on_a_worker, estimator, train_spec, train, evaluation)


def _on_a_worker(estimator: Estimator, train_spec: TrainSpec, train: Train, evaluation: bytes) -> Result:
    if not estimator.config.is_chief:
        return train(estimator, train_spec)
    with Beside(evaluation) as evaluator:
        train(estimator, train_spec)
        return cast("Result", evaluator.result())


def _check_strategy(given: StrategyOrMaker | None) -> None:
    if isinstance(given, Strategy) and not given.is_client:
        raise ClusterError(
            "train_distribute",
            repr(given),
            "belongs to this process, and the training is elsewhere, on `remote_cluster`",
            "Give the class, or leave it out: each worker makes its own.",
        )


@contextlib.contextmanager
def _client(config: RunConfig) -> Iterator[MultiWorkerMirroredStrategy]:
    """Yields the client's strategy, which is closed afterwards if it is made here."""
    given = config.train_distribute
    if isinstance(given, MultiWorkerMirroredStrategy):
        yield given
        return
    strategy = MultiWorkerMirroredStrategy(remote_cluster=config.remote_cluster)
    try:
        yield strategy
    finally:
        strategy.close()
