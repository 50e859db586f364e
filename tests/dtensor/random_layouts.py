"""Random meshes and layouts, for hypothesis."""

from __future__ import annotations

import jax
import numpy as np
from hypothesis import strategies as st

from replicax.dtensor import UNSHARDED, Layout, Mesh

SHAPES = [(8,), (1,), (2, 4), (4, 2), (1, 8), (2, 1, 2), (2, 2, 2), (3,), (2, 3), (1, 1)]
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.\-]{0,5}", fullmatch=True).filter(lambda name: name not in ("match",))
LABELS = st.text(max_size=12).filter(lambda text: "|" not in text) | st.just("a mesh:b, specs:c")


@st.composite
def meshes(draw) -> Mesh:
    shape = draw(st.sampled_from(SHAPES))
    names = draw(st.lists(NAMES, min_size=len(shape), max_size=len(shape), unique=True))
    devices = draw(st.permutations(jax.devices()))[: int(np.prod(shape))]
    return Mesh(names, np.array(devices).reshape(shape), draw(LABELS))


@st.composite
def layouts(draw) -> Layout:
    """Each mesh dimension cuts one tensor dimension or none; several may cut the same one."""
    mesh = draw(meshes())
    rank = draw(st.integers(0, 3))
    cuts = {name: draw(st.integers(-1, rank - 1)) for name in draw(st.permutations(mesh.dim_names))}
    specs = [tuple(name for name, axis in cuts.items() if axis == i) or UNSHARDED for i in range(rank)]
    return Layout(specs, mesh)
