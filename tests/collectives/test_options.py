from __future__ import annotations

import dataclasses
import pickle

import pytest

from replicax.collectives import CommunicationImplementation, CommunicationOptions, NcclAllReduce, RingAllReduce
from replicax.collectives.automatic import AutomaticAllReduce
from replicax.collectives.choose import choose_cross_device_ops
from replicax.errors import ArgumentError


@pytest.mark.parametrize("name", ["ring", "RING", "Ring", CommunicationImplementation.RING])
def test_an_implementation_is_known_by_its_name_in_any_case(name):
    assert CommunicationOptions(implementation=name).implementation is CommunicationImplementation.RING


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("bytes_per_pack", -1),
        ("bytes_per_pack", 1.5),
        ("bytes_per_pack", True),
        ("timeout_seconds", 0),
        ("timeout_seconds", -1.0),
        ("timeout_seconds", float("nan")),
        ("timeout_seconds", float("inf")),
        ("timeout_seconds", "10"),
        ("timeout_seconds", True),
        ("implementation", "gloo"),
        ("implementation", None),
        ("compression", "float16"),
        ("compression", 8),
        ("compression", "int4"),
    ],
)
def test_a_bad_field_is_refused_at_birth(field, value):
    with pytest.raises(ArgumentError) as error:
        CommunicationOptions(**{field: value})
    assert repr(value) in str(error.value)


def test_merge_takes_what_the_other_sets():
    ours = CommunicationOptions(bytes_per_pack=8, timeout_seconds=5, compression="bfloat16")
    theirs = CommunicationOptions(bytes_per_pack=16, implementation="nccl")
    assert ours.merge(theirs) == CommunicationOptions(16, 5, "nccl", "bfloat16")
    assert ours.merge(CommunicationOptions()) == ours
    assert ours.merge(None) is ours


def test_merge_refuses_what_are_no_options():
    with pytest.raises(ArgumentError, match=r"CommunicationOptions can be merged.*'ring'"):
        CommunicationOptions().merge("ring")


def test_options_are_values():
    options = CommunicationOptions(implementation="ring")
    assert hash(options) == hash(CommunicationOptions(implementation="RING"))
    assert pickle.loads(pickle.dumps(options)) == options
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.bytes_per_pack = 1


@pytest.mark.parametrize(
    ("implementation", "ops"), [("auto", AutomaticAllReduce()), ("nccl", NcclAllReduce()), ("ring", RingAllReduce())]
)
def test_an_implementation_stands_for_an_algorithm(implementation, ops):
    assert choose_cross_device_ops(CommunicationOptions(implementation=implementation)) == ops
