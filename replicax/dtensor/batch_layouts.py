"""The layouts of a dataset's batches."""

from __future__ import annotations

import jax
from jax.tree_util import KeyPath, PyTreeDef

from replicax.data.batch_placement import device_dtype
from replicax.data.batches import count_rows
from replicax.dtensor.arrays import checked_layout
from replicax.dtensor.layout import Layout
from replicax.dtensor.mesh import Mesh
from replicax.dtensor.specs import MATCH, UNSHARDED, Spec
from replicax.errors import LayoutError
from replicax.typing import PyTree


class BatchLayouts:
    """The layouts of a dataset's batches, checked: a pytree like an element of the dataset, or one for all leaves."""

    def __init__(self, layouts: PyTree, mesh: Mesh, batch_dim: Spec | None, size: int):
        leaves, self._treedef = jax.tree.flatten(layouts)
        self._size = size  # rows of a full batch
        self._single = isinstance(layouts, Layout)
        self._sharded = [checked_layout(layout) for layout in leaves]
        spec = UNSHARDED if batch_dim is None else Layout([batch_dim], mesh).sharding_specs[0]
        for layout in self._sharded:
            _check_layout(layout, mesh, spec)
        self._parts = Layout([spec], mesh).num_shards(0)
        if size % self._parts:
            raise LayoutError(
                f"global_batch_size={size} does not divide by {self._parts}, the size of batch_dim={batch_dim!r} of "
                f"{mesh!r}. Use a multiple of {self._parts}."
            )
        self._replicated = [Layout([UNSHARDED, *layout.sharding_specs[1:]], mesh) for layout in self._sharded]

    def of_batch(self, batch: PyTree) -> list[Layout]:
        """Returns the layout of each leaf: the rows are sharded where they divide, and replicated otherwise."""
        layouts = self._for_structure(batch, self._replicated if count_rows(batch) % self._parts else self._sharded)
        for layout, (path, leaf) in zip(layouts, jax.tree_util.tree_leaves_with_path(batch), strict=True):
            if layout.rank != leaf.ndim:
                raise LayoutError(
                    f"Batches{_at(path)} have the shape (rows, {', '.join(map(str, leaf.shape[1:]))}), of rank "
                    f"{leaf.ndim}, and the layout is for rank {layout.rank}: {layout!r}. It needs an entry for the "
                    "batch and one for each dimension of an element."
                )
            layout.check_shape(leaf.shape)
        return layouts

    def spec(self, batch: PyTree) -> PyTree:
        """Returns the structure, shapes and dtypes of a full batch, given a batch that `of_batch` has checked."""
        leaves, treedef = jax.tree.flatten(batch)
        specs = [
            jax.ShapeDtypeStruct((self._size, *leaf.shape[1:]), device_dtype(leaf.dtype), sharding=layout.to_sharding())
            for leaf, layout in zip(leaves, self._for_structure(batch, self._sharded), strict=True)
        ]
        return jax.tree.unflatten(treedef, specs)

    def _for_structure(self, batch: PyTree, layouts: list[Layout]) -> list[Layout]:
        found: PyTreeDef = jax.tree.structure(batch)
        if self._single:
            return layouts * found.num_leaves
        if found != self._treedef:
            raise LayoutError(
                f"`layouts` must be a pytree like an element of the dataset.\n  element: {found}\n  layouts: "
                f"{self._treedef}"
            )
        return layouts


def _check_layout(layout: Layout, mesh: Mesh, spec: Spec) -> None:
    if layout.mesh != mesh:
        raise LayoutError(f"The dataset is for {mesh!r}, but a layout is for another mesh: {layout!r}.")
    if MATCH in layout.sharding_specs or spec == MATCH:
        raise LayoutError(f"A dataset's layouts cannot say {MATCH!r}: only relayout understands it. Got {layout!r}.")
    if layout.rank == 0:
        raise LayoutError(f"A layout of a batch begins with an entry for its rows, but this one is empty: {layout!r}.")
    first = layout.sharding_specs[0]
    if first != spec and spec == UNSHARDED:
        raise LayoutError(
            f"{layout!r} shards the batch by {first!r}, but no batch_dim is given. Pass batch_dim={first!r}, or make "
            "the first entry UNSHARDED so that every device holds all rows."
        )
    if first != spec:
        raise LayoutError(f"The first entry of a layout must be batch_dim={spec!r}, got {first!r} in {layout!r}.")


def _at(path: KeyPath) -> str:
    return f" at leaf {jax.tree_util.keystr(path)}" if path else ""
