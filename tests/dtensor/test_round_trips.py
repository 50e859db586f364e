"""Random meshes and layouts: pack, relayout, unpack, checkpoint, restore elsewhere; the numbers stay."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings, strategies as st

from replicax import dtensor
from replicax.dtensor import UNSHARDED, Checkpoint, DVariable, Layout, Mesh

NAMES = ("a", "b", "c")


@st.composite
def meshes(draw: st.DrawFn) -> Mesh:
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3).filter(lambda sizes: math.prod(sizes) <= 8))
    devices = draw(st.permutations(range(8)))[: math.prod(sizes)]
    return dtensor.create_mesh(list(zip(NAMES, sizes, strict=False)), devices=[f"cpu:{i}" for i in devices])


@st.composite
def layouts(draw: st.DrawFn, mesh: Mesh, rank: int) -> Layout:
    """A layout of any rank: each mesh dimension cuts one of the tensor's dimensions, or none."""
    cuts: list[list[str]] = [[] for _ in range(rank)]
    for name in draw(st.permutations(mesh.dim_names)):
        axis = draw(st.integers(-1, rank - 1))
        if axis >= 0:
            cuts[axis].append(name)
    return Layout([UNSHARDED if not cut else cut[0] if len(cut) == 1 else tuple(cut) for cut in cuts], mesh)


@st.composite
def cases(draw: st.DrawFn) -> tuple[np.ndarray, Layout, Layout, Layout]:
    """Numbers, two layouts over one mesh and one over another; all divide the numbers' shape."""
    rank = draw(st.integers(0, 3))
    mesh, elsewhere = draw(meshes()), draw(meshes())
    first, second, third = (draw(layouts(on, rank)) for on in (mesh, mesh, elsewhere))
    shape = [
        math.lcm(*(layout.num_shards(axis) for layout in (first, second, third))) * draw(st.integers(1, 2))
        for axis in range(rank)
    ]
    dtype = draw(st.sampled_from([np.float32, np.int32, np.bool_]))
    return np.random.default_rng(0).integers(0, 100, shape).astype(dtype), first, second, third


def parts_of(numbers: np.ndarray, layout: Layout) -> list[np.ndarray]:
    """The parts in the mesh's order, found without replicax's own arithmetic on shapes."""
    parts = []
    for offsets in layout.offset_to_shard():
        part = numbers
        for axis, offset in enumerate(offsets):
            part = np.split(part, layout.num_shards(axis), axis)[offset]
        parts.append(part)
    return parts


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(cases())
def test_numbers_survive(case: tuple[np.ndarray, Layout, Layout, Layout]):
    numbers, first, second, third = case
    packed = dtensor.pack(parts_of(numbers, first), first, check_replicas=True)
    np.testing.assert_array_equal(packed, numbers)
    assert dtensor.fetch_layout(packed) == first

    moved = dtensor.relayout(packed, second)
    for part, expected in zip(dtensor.unpack(moved), parts_of(numbers, second), strict=True):
        np.testing.assert_array_equal(part, expected)

    with tempfile.TemporaryDirectory() as directory:
        path = Checkpoint(first.mesh, v=DVariable(moved)).write(Path(directory) / "c")
        restored = DVariable(np.zeros_like(numbers), layout=third)
        Checkpoint(third.mesh, v=restored).restore(path)
    dtensor.check_layout(restored.value, third)
    np.testing.assert_array_equal(restored.numpy(), numbers)
