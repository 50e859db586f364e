from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from replicax.data import InputWorkers
from replicax.data.batch_placement import ROWS, owned_copy, place
from replicax.data.batch_split import SplitBatch
from replicax.data.receivers import Receivers
from replicax.errors import BatchError
from replicax.runtime import mirrored_sharding, stacked_sharding
from replicax.values import PerReplica


@pytest.mark.parametrize("replicas", [1, 3, 8])
def test_part_i_is_on_device_i(mesh_for, replicas):
    parts = {"x": np.arange(replicas * 2.0).reshape(replicas, 2), "y": np.arange(replicas)}
    placed = place(parts, mesh_for(replicas), bare=False)
    assert isinstance(placed["x"], PerReplica)
    assert placed["x"].stacked.sharding == stacked_sharding(mesh_for(replicas))
    for i, component in enumerate(placed["x"].values):
        assert component.device == jax.devices()[i]
        assert component.tolist() == [2.0 * i, 2.0 * i + 1]


def test_one_replica_gets_plain_arrays(mesh_for):
    placed = place((np.ones((1, 4, 2)),), mesh_for(1), bare=True)
    assert isinstance(placed[0], jax.Array)
    assert placed[0].shape == (4, 2)
    assert placed[0].sharding == mirrored_sharding(mesh_for(1))


@pytest.mark.parametrize("dtype", ["f8", "f4", ">f4", "f2", "i8", ">i2", "u1", "?", "c16", jnp.bfloat16])
def test_dtypes_are_jaxs(mesh_for, dtype):
    values = np.array([[0, 1], [1, 0]]).astype(dtype)
    placed = place(values, mesh_for(2), bare=False).stacked
    assert placed.dtype == jnp.asarray(values.astype(values.dtype.newbyteorder("="))).dtype
    assert placed.tolist() == values.tolist()


def test_float64_stays_where_x64_is_on(mesh_for):
    with jax.enable_x64(True):
        assert place(np.ones((2, 1)), mesh_for(2), bare=False).stacked.dtype == np.float64


def test_nan_and_infinity_pass_through(mesh_for):
    placed = place(np.array([[np.nan], [np.inf]]), mesh_for(2), bare=False)
    np.testing.assert_array_equal(placed.stacked, [[np.nan], [np.inf]])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("lasts", [False, True])
@pytest.mark.parametrize("dtype", ["f8", ">f8", "c16"])
@pytest.mark.parametrize("large", [1e300, -1e300, 3.4028236e38])
def test_numbers_that_would_become_infinity_are_refused(mesh_for, dtype, large, lasts):
    rows = np.array([1, np.inf, -np.inf, np.nan, 1e-300, 3.4028234e38] * 3).astype(dtype).reshape(2, -1)
    kept = np.concatenate(place(rows, mesh_for(2), bare=False, lasts=lasts).values)
    np.testing.assert_array_equal(kept, rows.ravel().astype(kept.dtype))
    rows[1, 4] = large
    says = rf"{abs(large):g}, and devices hold (float32|complex64) .* up to 3\.40282e\+38.*map".replace("e+", r"e\+")
    with pytest.raises(BatchError, match=says):
        place(rows, mesh_for(2), bare=False, lasts=lasts)
    with pytest.raises(BatchError, match=says):  # in a step in which not all replicas take part
        ROWS.put(SplitBatch(1, rows, lasts=lasts), Receivers(2, mesh_for, InputWorkers(0, ("",), (2,))))
    with jax.enable_x64(True):
        assert place(rows, mesh_for(2), bare=False, lasts=lasts).values[1][4] == large


@pytest.mark.parametrize("replicas", [1, 2, 8])
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("columns", [1, 16, 50_000])
def test_the_callers_memory_is_its_own_again(mesh_for, replicas, columns, offset):
    # With `offset` 0 the memory is aligned as XLA wants it to use it as it is; a large array is copied later, by
    # another thread.
    size = 8 * columns
    memory = np.empty(size * 4 + 68, np.uint8)
    start = -memory.ctypes.data % 64 + 4 * offset
    batch = memory[start : start + size * 4].view(np.float32).reshape(replicas, -1, columns)
    batch[:] = 1
    placed = place(batch, mesh_for(replicas), bare=replicas == 1)
    batch[:] = 2
    assert float(jnp.max(getattr(placed, "stacked", placed))) == 1


@pytest.mark.parametrize("shape", [(3,), (2, 0), (5, 7, 11)])
def test_copies_are_aligned_so_that_xla_need_not_copy_again(shape):
    copy = owned_copy(np.ones(shape)[::-1])
    assert copy.size == 0 or copy.ctypes.data % 64 == 0
    assert copy.shape == shape
