from __future__ import annotations

import copy
import pickle

import pytest

import replicax as rx
from replicax.contracts.advice import Advised, advice_for
from replicax.errors import AbsentNameError
from replicax.tensorflow.names import asked_as, resolved
from replicax.tensorflow.names.other_libraries import ELSEWHERE
from tests.each import each


@pytest.mark.parametrize(
    ("ask", "advice"),
    [
        (lambda: rx.distribute, "rx.MirroredStrategy"),
        (lambda: rx.GradientTape, "rx.value_and_grad"),
        (lambda: rx.experimental_set_strategy, "rx.set_strategy"),
        (lambda: rx.nn, "rx.compute_average_loss"),
        (lambda: rx.data.Dataset, "any iterable"),
        (lambda: rx.config.list_physical_devices, "jax.devices()"),
        (lambda: rx.Strategy.experimental_run_v2, "rx.Strategy.run"),
        (lambda: rx.MirroredStrategy.experimental_run_v2, "rx.Strategy.run"),
        (lambda: rx.get_strategy().extended, "`strategy.extended.update` is `strategy.update`"),
        (lambda: rx.get_strategy().make_dataset_iterator, "for batch in dataset:"),
        (lambda: rx.get_strategy().reduce_to, "strategy.reduce"),
        (lambda: rx.function(lambda: 1).get_concrete_function, "lower"),
    ],
)
def test_a_name_of_tensorflow_is_answered_with_advice(ask, advice):
    with pytest.raises(AbsentNameError) as caught:
        ask()
    assert advice in str(caught.value)
    assert caught.value.name in str(caught.value)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("barrier", "strategy.barrier()"),
        ("FSDPStrategy", "rx.FullyShardedStrategy"),
        ("DataParallel", "rx.MirroredStrategy"),
        ("DistributedDataParallel", "rx.MultiWorkerMirroredStrategy"),
        ("init_process_group", "rx.MultiWorkerMirroredStrategy()"),
        ("get_rank", "strategy.worker_index"),
        ("get_world_size", "strategy.num_workers"),
        ("ModelParallel", "rx.LayoutStrategy"),
        ("DeviceMesh", "rx.LayoutStrategy"),
        ("set_distribution", "rx.set_strategy"),
        ("DistributedSampler", "strategy.distribute_dataset"),
    ],
)
def test_a_name_of_pytorch_or_keras_is_answered_with_advice(name, advice):
    with pytest.raises(AbsentNameError, match=r"(PyTorch|Keras|Lightning)'s ") as caught:
        getattr(rx, name)
    assert advice in str(caught.value)


def test_a_strategy_answers_for_them_too():
    for name in ("world_size", "get_rank", "no_sync", "rank"):
        with pytest.raises(AbsentNameError, match=r"is not in replicax|is rx\."):
            getattr(rx.MirroredStrategy(["cpu:0"]), name)


def test_a_row_of_another_library_is_true_and_whole():
    def check(name):
        row, last = ELSEWHERE[name], name.rpartition(".")[2]
        assert not hasattr(rx, last)
        assert last in advice_for("", last)
        assert row.note.endswith(".") or row.here
        assert not row.here or resolved(rx, row) is not None

    each(ELSEWHERE, check)


@pytest.mark.parametrize("owner", [rx, rx.dtensor, rx.coordinator, rx.data, rx.config, rx.cluster_resolver])
def test_any_other_name_is_an_ordinary_attribute_error(owner):
    with pytest.raises(AttributeError, match=r"module .* has no attribute 'nothing_like_it'") as caught:
        _ = owner.nothing_like_it
    assert type(caught.value) is AttributeError


@pytest.mark.parametrize("owner", [rx.get_strategy(), rx.MirroredStrategy, rx.function(lambda: 1)])
def test_objects_answer_as_python_does(owner):
    with pytest.raises(AttributeError, match="has no attribute 'nothing_like_it'") as caught:
        _ = owner.nothing_like_it
    assert type(caught.value) is AttributeError
    assert not hasattr(owner, "experimental_run_v3")
    assert getattr(owner, "extended", 3) == 3


def test_an_error_inside_a_property_is_not_hidden():
    class Strategy(Advised):
        @property
        def extended(self):
            return self.nowhere

        @property
        def other(self):
            raise AttributeError("what happened")

    with pytest.raises(AttributeError, match="what happened"):
        _ = Strategy().other


def test_what_gives_advice_can_be_copied():
    function = rx.function(abs)
    assert copy.copy(function)(-3) == 3


def test_the_error_survives_pickling_and_keeps_the_name():
    with pytest.raises(AttributeError) as caught:
        _ = rx.GradientTape
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.name, again.advice) == (str(caught.value), "GradientTape", caught.value.advice)


@pytest.mark.parametrize(
    ("tf_name", "asked"),
    [
        ("tf.distribute", "distribute"),
        ("tf.distribute.experimental", "experimental"),
        ("tf.distribute.Strategy.run", "Strategy.run"),
        ("tf.distribute.StrategyExtended.update", "Strategy.update"),
        ("tf.experimental.dtensor.Mesh.host_mesh", "dtensor.Mesh.host_mesh"),
        ("tf.distribute.experimental.coordinator.PerWorkerValues", "coordinator.PerWorkerValues"),
        ("tf.function", "function"),
        ("tf.function.get_concrete_function", "Function.get_concrete_function"),
    ],
)
def test_where_a_name_is_asked(tf_name, asked):
    assert asked_as(tf_name) == asked
