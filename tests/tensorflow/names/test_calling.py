from __future__ import annotations

import enum
import inspect

import numpy as np
import pytest

from replicax.contracts.called_as import called_as
from replicax.errors import ArgumentError


@called_as("tf.distribute.Strategy.reduce")
def reduce(op, value, *, axis=None):
    """Says what it was given."""
    return op, value, axis


@called_as("tf.distribute.TPUStrategy")
class Strategy:
    def __init__(self, tpu_cluster_resolver=None):
        self.resolver = tpu_cluster_resolver


def test_a_keyword_with_another_name_is_passed_on():
    assert reduce(reduce_op="sum", value=1) == ("sum", 1, None)
    assert reduce("sum", 1, axis=0) == ("sum", 1, 0)


def test_a_keyword_under_both_names_is_refused():
    with pytest.raises(ArgumentError, match="`reduce_op` is TensorFlow's name for `op`, and both were given"):
        reduce(reduce_op="sum", op="sum", value=1)


@pytest.mark.parametrize("value", [None, False])
def test_a_value_that_changes_nothing_is_accepted(value):
    assert Strategy("resolver", experimental_spmd_xla_partitioning=value).resolver == "resolver"


@pytest.mark.parametrize("value", [True, 0, np.zeros(2), "no"])
def test_any_other_value_is_refused_with_advice(value):
    with pytest.raises(ArgumentError, match=r"`experimental_spmd_xla_partitioning`.*rx.LayoutStrategy"):
        Strategy(experimental_spmd_xla_partitioning=value)


@pytest.mark.parametrize("value", [None, False, 0, "extended"])
def test_a_keyword_that_nothing_takes_the_place_of_is_refused_whatever_it_is(value):
    @called_as("tf.distribute.Strategy")
    class Own:
        def __init__(self):
            pass

    with pytest.raises(ArgumentError, match="`extended`, which is not in replicax"):
        Own(extended=value)


def test_what_nobody_knows_is_an_ordinary_error():
    with pytest.raises(TypeError, match="unexpected keyword argument 'nothing_like_it'") as caught:
        reduce("sum", 1, nothing_like_it=2)
    assert type(caught.value) is TypeError


def test_signature_and_words_stay():
    assert list(inspect.signature(reduce).parameters) == ["op", "value", "axis"]
    assert reduce.__doc__ == "Says what it was given."
    assert isinstance(Strategy, type)


def test_more_arguments_than_places_are_read_in_tensorflows_order():
    made = Strategy("resolver", None, False)
    assert made.resolver == "resolver"
    with pytest.raises(ArgumentError, match=r"`experimental_spmd_xla_partitioning`.*rx.LayoutStrategy"):
        Strategy("resolver", None, True)


def test_arguments_by_place_are_not_given_by_name_too_and_not_more_than_tensorflow_has():
    with pytest.raises(ArgumentError, match="experimental_device_assignment twice: by place and by name"):
        Strategy("resolver", None, experimental_device_assignment=None)
    with pytest.raises(ArgumentError, match="at most 3 arguments"):
        Strategy("resolver", None, False, 4)


def test_without_an_order_too_many_arguments_are_an_ordinary_error():
    with pytest.raises(TypeError, match="takes 2 positional arguments but 3 were given"):
        reduce("sum", 1, 0)


class Mode(enum.Enum):
    PER_WORKER = "PER_WORKER"
    PER_REPLICA = "PER_REPLICA"


def test_a_member_of_an_enumeration_is_accepted_as_its_value():
    @called_as("tf.distribute.InputOptions")
    def options(**given):
        return given

    assert options(experimental_replication_mode=Mode.PER_WORKER) == {}
    with pytest.raises(ArgumentError, match=r"PER_REPLICA.*one input pipeline"):
        options(experimental_replication_mode=Mode.PER_REPLICA)
