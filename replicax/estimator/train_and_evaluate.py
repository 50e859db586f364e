"""`train_and_evaluate`: each process does its part, which its role in the cluster tells."""

from __future__ import annotations

import jax

from replicax.checkpoint.places import absolute
from replicax.checks import explained
from replicax.contracts.called_as import called_as
from replicax.errors import ArgumentError, ClusterError
from replicax.estimator.client import train_and_evaluate_there
from replicax.estimator.estimator import Estimator
from replicax.estimator.evaluating import CheckpointEvaluator, EvaluateSaved, follow
from replicax.estimator.journal import Result, checkpoints, forget_end, note_end
from replicax.estimator.roles import EVALUATOR, LOCAL, SERVER, WORKER
from replicax.estimator.run_config import RunConfig
from replicax.estimator.specs import EvalSpec, TrainSpec
from replicax.strategies import Strategy


@explained
@called_as("tf.estimator.train_and_evaluate")
def train_and_evaluate(estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec) -> Result:
    """Trains, evaluates and exports; in a cluster, it does the part that the role of this process is.

    Every process runs the same program with the same `model_dir`. The chief and the workers train together. Parameter
    servers serve, and so do the workers beside them: there the call does not return. The evaluator evaluates each new
    checkpoint, calls the exporters, and ends with the training; one that comes back evaluates what it has missed.
    A process without a cluster trains and evaluates: after a checkpoint, unless the last evaluation began less than
    `throttle_secs` ago, and at the end. With a remote cluster (`DistributeConfig(remote_cluster=...)`) the workers
    there train, and this process shows what they print and returns the result.

    Args:
        estimator: The estimator.
        train_spec: The data of the training, and its end.
        eval_spec: The data of the evaluations, and the exports.

    Returns:
        The metrics of the last evaluation, and what each exporter returned for it. `(None, [])` in a chief or worker.

    Raises:
        ArgumentError: An argument has the wrong type.
        ClusterError: The strategy does not train with the other processes of the cluster.
        EstimatorError: An evaluator has waited for `idle_timeout_secs`, and the training has not ended.

    Example:
        >>> metrics, exports = train_and_evaluate(  # doctest: +SKIP
        ...     estimator, TrainSpec(train_data, max_steps=1000), EvalSpec(test_data, throttle_secs=0)
        ... )
    """
    _check(estimator, train_spec, eval_spec)
    config = estimator.config
    if config.is_client:
        return train_and_evaluate_there(estimator, train_spec, eval_spec, _train, _evaluate)
    if config.role == LOCAL:
        return _train_and_evaluate_here(estimator, train_spec, eval_spec)
    if config.role == EVALUATOR:
        return _evaluate(estimator, train_spec, eval_spec)
    if config.role == SERVER or (config.role == WORKER and SERVER in config.cluster.spec.jobs):
        return _serve(config)
    return _train(estimator, train_spec)


def _check(estimator: object, train_spec: object, eval_spec: object) -> None:
    for name, given, kind in (
        ("estimator", estimator, Estimator),
        ("train_spec", train_spec, TrainSpec),
        ("eval_spec", eval_spec, EvalSpec),
    ):
        if not isinstance(given, kind):
            raise ArgumentError(f"`{name}` must be an `rx.estimator.{kind.__name__}`, got {given!r:.100}.")


def _train_and_evaluate_here(estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec) -> Result:
    evaluator = CheckpointEvaluator(estimator, eval_spec, train_spec.max_steps)
    listener = EvaluateSaved(evaluator, eval_spec.throttle_secs)
    estimator.train(
        train_spec.input_fn,
        hooks=train_spec.all_hooks,
        max_steps=train_spec.max_steps,
        saving_listeners=[*train_spec.all_listeners, listener],
    )
    last = evaluator.finish(checkpoints(absolute(estimator.model_dir))[-1])
    return last.metrics, last.exports


def _train(estimator: Estimator, train_spec: TrainSpec) -> Result:
    config, directory = estimator.config, absolute(estimator.model_dir)
    check_trains_together(config, config.training_strategy())
    if config.is_chief:
        forget_end(directory)
    estimator.train(
        train_spec.input_fn,
        hooks=train_spec.all_hooks,
        max_steps=train_spec.max_steps,
        saving_listeners=train_spec.all_listeners if config.is_chief else None,
    )
    if config.is_chief:
        ended = checkpoints(directory)[-1].step
        assert ended is not None  # Its name is a number.
        note_end(directory, ended)
    return None, []


def _evaluate(
    estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec, training_began: float | None = None
) -> Result:
    evaluator = CheckpointEvaluator(estimator, eval_spec, train_spec.max_steps)
    last = follow(evaluator, eval_spec, train_spec.max_steps, training_began)
    return (None, []) if last is None else (last.metrics, last.exports)


def _serve(config: RunConfig) -> Result:
    strategy = config.training_strategy()  # A parameter server strategy serves here, and then ends the process.
    raise ClusterError(
        f"{config.cluster.source} task".strip(),
        f"{config.task_type}:{config.task_id}",
        f"serves a coordinator of parameter servers, but {strategy!r} has none",
        "Leave `train_distribute` out, or give `rx.ParameterServerStrategy`.",
    )


def check_trains_together(config: RunConfig, strategy: Strategy) -> None:
    """Checks that the processes of a cluster do not train one model each, all writing to one folder."""
    if config.num_worker_replicas > 1 and not strategy.is_asynchronous and jax.process_count() == 1:
        raise ClusterError(
            "train_distribute",
            repr(strategy),
            f"trains in this process alone, and the cluster has {config.num_worker_replicas} that train: each would "
            "write checkpoints of its own",
            "Give `rx.MultiWorkerMirroredStrategy`, or leave it out.",
        )
