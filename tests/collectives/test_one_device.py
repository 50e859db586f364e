from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from replicax.collectives import ReductionToOneDevice
from replicax.errors import ArgumentError, ContextError, DeviceError, ReduceError


@pytest.mark.parametrize("root", [None, 0, 2, 4])
def test_accumulates_in_replica_order_on_any_root(replicas, same_everywhere, root):
    values = np.random.default_rng(0).normal(size=(5, 64)).astype("float32")
    [result] = jax.jit(replicas(5).reducer(ReductionToOneDevice(root)))(values)
    in_order = values[0] + values[1] + values[2] + values[3] + values[4]
    np.testing.assert_array_equal(same_everywhere(result), in_order)


def test_every_component_goes_to_the_root_and_a_tree_brings_the_result_back(replicas, count_ops):
    hlo = replicas(8).hlo(ReductionToOneDevice(3), [jnp.ones((8, 5))])
    assert count_ops(hlo, "all-reduce") == 0
    assert count_ops(hlo, "collective-permute") == 7 + 3


def test_accumulates_by_a_function_of_ones_own(replicas, same_everywhere):
    ops = ReductionToOneDevice(accumulation_fn=lambda values: jnp.max(jnp.stack(values), axis=0))
    values = jnp.array([[-1.0, -5.0], [-3.0, -2.0], [-4.0, -9.0]])
    [result] = jax.jit(replicas(3).reducer(ops))(values)
    np.testing.assert_array_equal(same_everywhere(result), [-1.0, -2.0])


def test_a_constant_is_a_result_too(replicas, same_everywhere):
    ops = ReductionToOneDevice(accumulation_fn=lambda values: jnp.zeros_like(values[0]))
    [result] = jax.jit(replicas(3).reducer(ops))(jnp.ones((3, 2)))
    np.testing.assert_array_equal(same_everywhere(result), [0.0, 0.0])


@pytest.mark.parametrize("device", ["cpu:2", "/device:CPU:2", 2])
def test_a_device_stands_for_its_replica(device):
    devices = [jax.devices()[i] for i in (0, 1, 2)]
    assert ReductionToOneDevice(device).for_devices(devices).reduce_to_device == 2
    assert ReductionToOneDevice(devices[2]).for_devices(devices[::-1]).reduce_to_device == 0


def test_a_device_of_no_replica_is_refused():
    with pytest.raises(DeviceError, match=r"one of the strategy's devices \['cpu:0', 'cpu:1'\], got 'cpu:5'"):
        ReductionToOneDevice("cpu:5").for_devices(jax.devices()[:2])
    with pytest.raises(DeviceError, match="does not exist"):
        ReductionToOneDevice("cpu:99").for_devices(jax.devices()[:2])


def test_a_device_that_nobody_looked_up_is_refused(replicas):
    with pytest.raises(ContextError, match=r"which replica lives on 'cpu:1'.*for_devices"):
        replicas(2).reducer(ReductionToOneDevice("cpu:1"))(jnp.ones((2, 1)))


def test_a_replica_that_does_not_exist_is_refused(replicas):
    with pytest.raises(ReduceError, match=r"below 2, the number of replicas, got 2"):
        replicas(2).reducer(ReductionToOneDevice(2))(jnp.ones((2, 1)))


def test_an_accumulation_that_changes_the_shape_is_refused(replicas):
    with pytest.raises(ReduceError, match=r"float32\[3\] .* returned float32\[2, 3\]"):
        replicas(2).reducer(ReductionToOneDevice(accumulation_fn=jnp.stack))(jnp.ones((2, 3)))


def test_an_accumulation_of_ones_own_has_no_gradient(replicas):
    reduce = replicas(2).reducer(ReductionToOneDevice(accumulation_fn=lambda values: values[0] * values[1]))
    with pytest.raises(ReduceError, match="has no gradient"):
        jax.grad(lambda x: reduce(x)[0].sum())(jnp.ones((2, 3)))


@pytest.mark.parametrize(
    ("field", "value"),
    [("reduce_to_device", -1), ("reduce_to_device", True), ("reduce_to_device", 1.0), ("accumulation_fn", "sum")],
)
def test_a_bad_field_is_refused(field, value):
    with pytest.raises(ArgumentError, match=f"{field}.*{value}"):
        ReductionToOneDevice(**{field: value})
