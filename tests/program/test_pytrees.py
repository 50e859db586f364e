from __future__ import annotations

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from replicax.errors import ArgumentError, ReplicaShapeError
from replicax.program.pytrees import (
    flatten_inputs,
    flatten_outputs,
    is_array,
    is_input,
    is_number_like,
    per_replica_arrays,
)
from replicax.values import PerReplica, UnevenPerReplica

LEAVES = [1, 2.5, 1j, True, "a", None, b"b", np.float32(3), np.int64(4), object()]


@settings(max_examples=50)
@given(
    nest=st.recursive(
        st.sampled_from(LEAVES),
        lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.sampled_from("abc"), inner),
        max_leaves=12,
    )
)
def test_any_nest_is_rebuilt_from_its_parts(nest):
    for take_apart in (flatten_inputs, flatten_outputs):
        arrays, structure = take_apart(nest)
        assert structure.rebuild(arrays) == nest


@pytest.mark.parametrize(
    ("leaf", "input_", "array"),
    [
        (1, True, False),
        (2.5, True, False),
        (1j, True, False),
        (np.float32(1), True, False),
        (np.ones(2), True, True),
        (jnp.ones(2), True, True),
        (jax.random.key(0), True, True),
        (True, False, False),
        ("a", False, False),
        (b"a", False, False),
    ],
    ids=repr,
)
def test_numbers_go_into_a_program_but_only_arrays_come_out(leaf, input_, array):
    assert is_input(leaf) is input_
    assert is_array(leaf) is array
    assert len(flatten_inputs([leaf])[0]) == input_
    assert len(flatten_outputs([leaf])[0]) == array


def test_per_replica_values_are_taken_apart_into_their_stacks():
    value = PerReplica(jnp.ones((2, 3)))
    arrays, structure = flatten_inputs({"x": value, "flag": True, "n": 1})
    assert [np.shape(array) for array in arrays] == [(), (2, 3)]
    rebuilt = structure.rebuild([5, jnp.zeros((2, 3))])
    assert isinstance(rebuilt["x"], PerReplica)
    assert (rebuilt["n"], rebuilt["flag"]) == (5, True)


def test_the_stacked_arrays_are_told_from_the_shared_ones():
    value = PerReplica(jnp.ones((3, 2)))
    nest = ((1.0, value, "a"), {"k": value, "b": jnp.ones(3), "f": True})
    flags, count = per_replica_arrays(nest)
    assert flags == [False, True, False, True]
    assert len(flatten_inputs(nest)[0]) == len(flags)
    assert count == 3
    assert per_replica_arrays((1.0,)) == ([False], None)


def test_per_replica_values_of_different_lengths_do_not_go_together():
    with pytest.raises(ReplicaShapeError, match=r"\[2, 3\]"):
        per_replica_arrays([PerReplica(jnp.ones(2)), PerReplica(jnp.ones(3))])


def test_uneven_values_are_refused():
    with pytest.raises(ReplicaShapeError, match=r"\(2,\) float32, \(\) float"):
        flatten_inputs([UnevenPerReplica([jnp.ones(2), 1.0])])


@dataclasses.dataclass
class Config:
    width: int


@dataclasses.dataclass
class State:
    params: object


def test_a_dataclass_without_arrays_is_an_ordinary_value():
    config = Config(3)
    arrays, structure = flatten_inputs((config, 1.0))
    assert structure.rebuild(arrays)[0] is config


@pytest.mark.parametrize("take_apart", [flatten_inputs, flatten_outputs])
@pytest.mark.parametrize("held", [jnp.ones(2), np.ones(2), PerReplica(jnp.ones(2))], ids=["jax", "numpy", "replica"])
def test_a_dataclass_with_arrays_is_taken_apart(take_apart, held):
    arrays, structure = take_apart(State(held))
    assert len(arrays) == 1
    rebuilt = structure.rebuild([3 * arrays[0]])
    assert isinstance(rebuilt, State)
    assert jax.tree.leaves(rebuilt.params)[0].tolist() == [3.0, 3.0]


@pytest.mark.parametrize(
    "array",
    [
        np.array(["a"]),
        np.array([object()]),
        np.array(["2020-01-01"], "M8[D]"),
        np.zeros(2, [("a", "f4")]),
        np.str_("a"),
        np.datetime64(0, "s"),
    ],
    ids=["strings", "objects", "times", "records", "string", "time"],
)
def test_arrays_of_something_else_than_numbers_are_refused(array):
    assert not is_number_like(array)
    for nest in ([array], [array, 1]):
        with pytest.raises(ArgumentError, match=r"numbers only.*indices"):
            flatten_inputs(nest)
    if isinstance(array, np.ndarray):
        with pytest.raises(ArgumentError, match="returned"):
            flatten_outputs([array])


@pytest.mark.parametrize(
    ("dtype", "known"), [(">f4", "float32"), (">i2", "int16"), ("longdouble", "float64"), ("clongdouble", "complex128")]
)
def test_numbers_as_jax_does_not_know_them_are_refused(dtype, known):
    """Such as those of files whose bytes are the other way round."""
    with pytest.raises(ArgumentError, match=re.escape(f"(2,) was passed. Convert it: `x.astype('{known}')`")):
        flatten_inputs([np.zeros(2, dtype)])


def test_narrow_floats_are_numbers():
    arrays = [np.ones(2, jnp.bfloat16), np.ones(2, jnp.float8_e4m3fn), np.ones(2, jnp.float8_e4m3fnuz)]
    assert flatten_inputs(arrays)[0] == arrays
