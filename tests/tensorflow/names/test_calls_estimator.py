"""TensorFlow's keywords of `tf.estimator` do here what they do there."""

from __future__ import annotations

import pytest

import replicax as rx
from replicax.errors import ArgumentError
from tests.tensorflow.names.calls import tries

_E = "tf.estimator"


def data():
    return ()


@tries(f"{_E}.RunConfig", "tf.contrib.distribute.DistributeConfig")
def test_configs(call):
    strategy, other = rx.OneDeviceStrategy("cpu:0"), rx.OneDeviceStrategy("cpu:0")
    distribute = call(
        "tf.contrib.distribute.DistributeConfig",
        rx.estimator.DistributeConfig,
        train_distribute=strategy,
        eval_distribute=None,
        remote_cluster=None,
    )
    config = call(
        f"{_E}.RunConfig",
        rx.estimator.RunConfig,
        model_dir="runs",
        tf_random_seed=3,
        save_summary_steps=4,
        save_checkpoints_steps=5,
        save_checkpoints_secs=None,
        session_config=None,
        keep_checkpoint_max=6,
        keep_checkpoint_every_n_hours=7,
        log_step_count_steps=8,
        train_distribute=None,
        device_fn=None,
        protocol="grpc",
        eval_distribute=other,
        experimental_distribute=distribute,
        experimental_max_worker_delay_secs=None,
        session_creation_timeout_secs=7200,
        checkpoint_save_graph_def=True,
    )
    assert (config.model_dir, config.seed, config.save_summary_steps, config.save_checkpoints_steps) == (
        "runs",
        3,
        4,
        5,
    )
    assert (config.keep_checkpoint_max, config.keep_checkpoint_every_n_hours, config.log_step_count_steps) == (6, 7, 8)
    assert (config.training_strategy(), config.evaluation_strategy()) == (strategy, other)
    with pytest.raises(ArgumentError, match=r"`device_fn`.*The strategy places variables"):
        config.replace(device_fn=print)


@tries(f"{_E}.train_and_evaluate")
def test_the_call(call):
    with pytest.raises(ArgumentError, match="`estimator` must be an"):
        call(
            f"{_E}.train_and_evaluate",
            rx.estimator.train_and_evaluate,
            estimator=None,
            train_spec=rx.estimator.TrainSpec(data),
            eval_spec=rx.estimator.EvalSpec(data),
        )


@tries(f"{_E}.TrainSpec", f"{_E}.EvalSpec")
def test_specs(call):
    train = call(
        f"{_E}.TrainSpec", rx.estimator.TrainSpec, input_fn=data, max_steps=3, hooks=None, saving_listeners=None
    )
    assert (train.input_fn, train.max_steps) == (data, 3)
    evaluation = call(
        f"{_E}.EvalSpec",
        rx.estimator.EvalSpec,
        input_fn=data,
        steps=None,
        name="test",
        hooks=None,
        exporters=None,
        start_delay_secs=0,
        throttle_secs=1,
    )
    assert (evaluation.steps, evaluation.name, evaluation.throttle_secs) == (None, "test", 1)
