from __future__ import annotations

import jax
import numpy as np
from jax.sharding import AxisType, PartitionSpec

from replicax.runtime import REPLICA_AXIS, mirrored_sharding, replica_mesh, stacked_sharding
from replicax.runtime.mesh import longest_divisible


def test_a_replica_mesh_is_one_axis_of_devices_in_the_given_order():
    devices = [jax.devices()[i] for i in (2, 0, 1)]
    mesh = replica_mesh(devices)
    assert mesh.axis_names == (REPLICA_AXIS,)
    assert mesh.axis_types == (AxisType.Auto,)
    assert list(mesh.devices) == devices


def test_the_longest_dimension_that_is_divided_is_cut_and_of_equal_ones_the_first():
    shapes = {(702, 512): 1, (8, 8): 0, (4, 8, 8): 1, (7, 3): None, (0, 8): 1}
    assert {shape: longest_divisible(shape, 4) for shape in shapes} == shapes
    assert longest_divisible((8, 8), 4, taken=[0]) == 1


def test_a_mirrored_value_is_whole_on_every_device():
    placed = jax.device_put(np.arange(6.0), mirrored_sharding(replica_mesh(jax.devices()[:3])))
    assert [shard.data.shape for shard in placed.addressable_shards] == [(6,)] * 3


def test_a_stacked_value_has_row_i_on_device_i():
    mesh = replica_mesh(jax.devices()[:3])
    placed = jax.device_put(np.arange(6.0).reshape(3, 2), stacked_sharding(mesh))
    assert stacked_sharding(mesh).spec == PartitionSpec(REPLICA_AXIS)
    rows = {shard.device: shard.data.tolist() for shard in placed.addressable_shards}
    assert rows == {device: [[2.0 * i, 2.0 * i + 1]] for i, device in enumerate(mesh.devices)}


def test_a_mesh_has_one_sharding_object_of_each_kind():
    """Programs compare placements by identity first, at every step."""
    mesh = replica_mesh(jax.devices()[:2])
    assert mirrored_sharding(mesh) is mirrored_sharding(mesh)
    assert stacked_sharding(mesh) is stacked_sharding(mesh)
