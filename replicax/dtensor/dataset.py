"""Datasets of DTensors: global batches, sharded over a mesh as layouts say."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable
from itertools import islice
from typing import NamedTuple

import jax
import numpy as np
from jax.tree_util import KeyPath, PyTreeDef

import replicax.runtime.activity as activity
from replicax.contracts.advice import AdvisedContract
from replicax.contracts.called_as import called_as
from replicax.data.batch_placement import device_dtype, owned_copy
from replicax.data.batches import count_rows, host_batch, is_array
from replicax.data.input_options import InputOptions
from replicax.data.iterator import DistributedIterator, check_outside_of_programs
from replicax.data.passes import check_may_be_empty, peek
from replicax.data.prefetch import prefetch as prefetched
from replicax.data.sources import HostBatches, check_batch_size, host_batches, is_array_pytree
from replicax.dtensor.arrays import checked_layout
from replicax.dtensor.layout import Layout
from replicax.dtensor.mesh import Mesh, MeshLike
from replicax.dtensor.specs import MATCH, UNSHARDED, Spec
from replicax.errors import ArgumentError, BatchError, LayoutError
from replicax.typing import Leaf, PyTree


class DTensorDataset(AdvisedContract, Iterable[PyTree]):
    """A dataset whose elements are global batches over a mesh: pytrees of DTensors.

    Each iteration is a new pass over the source. Batches keep the order of the source: if a mesh dimension of
    size k shards the batch, its shard i begins at row `i * size / k`.

    Every client (process) passes the same dataset, in the same order, and puts only the rows of its own devices on
    them.

    Args:
        dataset: Where the elements come from. Arrays, or a pytree of them that is not a list: their rows. Anything else
            that yields elements: a list, a Grain dataset or `DataLoader`, a torch `Dataset` or `DataLoader`, a
            `tf.data.Dataset`, an object with `__len__` and `__getitem__`, or a function without arguments that returns
            one of these or a generator. An element is a pytree of arrays and numbers. An iterator allows one
            pass only.
        mesh: The mesh: a `Mesh`, a `jax.sharding.Mesh` or a `keras.distribution.DeviceMesh`.
        layouts: Pytree like an element, with the `Layout` of each _batched leaf: its rank is one more than the
            element's. A single layout is for all leaves.
        global_batch_size: Number of rows of a batch, over all devices and clients.
        dataset_already_batched: Whether the dataset yields batches. They are global batches of `global_batch_size`
            rows; only the last may have fewer. (TensorFlow wants them in the size that one device gets.)
        batch_dim: The mesh dimension (or tuple of them) that shards the batch: the first entry of every layout. None if
            every device gets whole batches; then that entry is `UNSHARDED`.
        prefetch: How many batches a background thread keeps ready on the devices; 0 or None prepares each one when it
            is asked for.
        remainder: What happens to a last batch with fewer rows. `"exact"` loses nothing: if the rows do not divide,
            the batch dimension is replicated in this batch, so that each device holds all its rows. `"drop"`
            leaves the batch out, as TensorFlow does.

    Raises:
        LayoutError: The layouts do not have the structure of the elements, the rank of a batch, or the mesh; a first
            entry is not `batch_dim`; `batch_dim` is not a dimension of the mesh or does not divide
            `global_batch_size`. If elements are known only by looking, it is raised in the first pass.
        ArgumentError: An argument has the wrong type or value.
        BatchError: The given arrays disagree in their number of rows, or have none (or too few, if dropped).

    Example:
        >>> from replicax.dtensor import create_mesh
        >>> mesh = create_mesh([("batch", 4), ("model", 2)])
        >>> layouts = (Layout(["batch", "model"], mesh), Layout(["batch"], mesh))
        >>> data = np.zeros((10, 6), np.float32), np.arange(10)
        >>> dataset = DTensorDataset(data, mesh=mesh, layouts=layouts, global_batch_size=8, batch_dim="batch")
        >>> [(x.sharding.shard_shape(x.shape), y.shape) for x, y in dataset]
        [((2, 3), (8,)), ((2, 3), (2,))]
    """

    @called_as("tf.experimental.dtensor.DTensorDataset")
    def __init__(
        self,
        dataset: PyTree | Iterable[PyTree] | Callable[[], Iterable[PyTree]],
        *,
        mesh: MeshLike,
        layouts: PyTree,
        global_batch_size: int,
        dataset_already_batched: bool = False,
        batch_dim: Spec | None = None,
        prefetch: int | None = 2,
        remainder: str = "exact",
    ):
        self._options = InputOptions(prefetch=0 if prefetch is None else prefetch, remainder=remainder)
        self._size = check_batch_size(global_batch_size, "global_batch_size")
        self._layouts = _BatchLayouts(layouts, Mesh.of(mesh), batch_dim, self._size)
        self._batches, self._count_rows = _source_of(dataset, self._size, dataset_already_batched)
        self._spec: PyTree = None
        self._peeked_pass: Generator[tuple[PyTree, list[Layout]]] | None = None
        if is_array_pytree(dataset):
            self._look_at_first()

    def __iter__(self) -> DistributedIterator:
        check_outside_of_programs("A DTensorDataset was iterated over")
        batches, self._peeked_pass = self._peeked_pass or self._open_pass(), None
        steps = prefetched(self._place(batches), self._options.prefetch, activity.FIRST_BATCH)
        return DistributedIterator(steps, spec=lambda: self._spec)

    def __bool__(self) -> bool:
        return True  # Otherwise Python would call `__len__`, which fails if the length is not known.

    def __len__(self) -> int:
        """Number of batches of a pass; ArgumentError (a TypeError too) if the source has no length."""
        # It counts what a `filter` of a Grain dataset takes away, and the last batch of a dataset that is _batched
        # already, which "drop" may leave out.
        if self._count_rows is None:
            return len(self._batches)
        rows = self._count_rows()
        return rows // self._size if self._options.remainder == "drop" else -(-rows // self._size)

    @property
    def element_spec(self) -> PyTree:
        """The shape of a full batch: a pytree of `jax.ShapeDtypeStruct`, with the global shape and the sharding.

        Before the first pass this opens the source to look at its first batch. No data is lost: the first batch of an
        iterator is kept for the next pass, and other sources start anew.

        Raises:
            BatchError: There is no batch.
        """
        if self._spec is None:
            self._look_at_first()
        return self._spec

    def _look_at_first(self) -> None:
        self._peeked_pass = peek(self._open_pass(), keep=self._batches.one_shot)

    def _open_pass(self) -> Generator[tuple[PyTree, list[Layout]]]:
        """Opens the source and yields its batches on the host, each with the layouts of its leaves."""
        kept = dropped = 0
        with contextlib.closing(_of_size(self._batches, self._size)) as batches:
            for batch in batches:
                layouts = self._layouts.of_batch(batch)
                if self._spec is None:
                    self._spec = self._layouts.spec(batch)
                if count_rows(batch) < self._size and self._options.remainder == "drop":
                    dropped += 1
                    continue
                kept += 1
                yield batch, layouts
        if not kept:
            self._check_empty_pass(dropped)

    def _check_empty_pass(self, dropped: int) -> None:
        if dropped:
            raise BatchError(
                f"remainder='drop' left nothing of this dataset: it has fewer than global_batch_size={self._size} "
                "rows. Use a smaller batch size or remainder='exact'."
            )
        check_may_be_empty(gave_batches_before=self._spec is not None)

    def _place(self, batches: Generator[tuple[PyTree, list[Layout]]]) -> Generator[PyTree]:
        with contextlib.closing(batches):
            for batch, layouts in batches:
                leaves, treedef = jax.tree.flatten(batch)
                yield jax.tree.unflatten(treedef, _placed(leaves, layouts))


def _source_of(dataset: PyTree, size: int, already_batched: bool) -> tuple[HostBatches, Callable[[], int] | None]:
    """Returns the batches of a dataset and a function that counts its rows; None if only batches can be counted."""
    if isinstance(dataset, DTensorDataset):
        raise ArgumentError("This is a DTensorDataset already; pass the dataset that it was made from.")
    if is_array_pytree(dataset):
        if already_batched:
            raise ArgumentError(
                "dataset_already_batched=True is for a dataset that yields batches, but this one yields the rows of "
                f"its arrays ({type(dataset).__name__}): leave it out. (If it is a collection of batches, make it a "
                "list.)"
            )
        rows = count_rows(host_batch(dataset, "The dataset"))
        return host_batches(dataset, size), lambda: rows
    elements = host_batches(dataset)
    if already_batched:
        return elements, None
    batches = HostBatches(lambda: _batched(elements, size), elements.name, one_shot=elements.one_shot)
    return batches, lambda: len(elements)


# Onto the devices.


def _placed(leaves: list[np.ndarray], layouts: list[Layout]) -> list[jax.Array]:
    """Puts the shards of arrays on the devices of this process, in one transfer."""
    shardings = [layout.to_sharding() for layout in layouts]
    if shardings[0].is_fully_addressable:
        return jax.device_put([owned_copy(leaf) for leaf in leaves], shardings)
    # With a whole array and devices of other processes, device_put would ask these whether their array is equal.
    indices = [
        sharding.addressable_devices_indices_map(leaf.shape) for leaf, sharding in zip(leaves, shardings, strict=True)
    ]
    parts = [owned_copy(leaf[index]) for leaf, of in zip(leaves, indices, strict=True) for index in of.values()]
    placed = iter(jax.device_put(parts, [device for of in indices for device in of]))
    return [
        jax.make_array_from_single_device_arrays(
            leaf.shape, sharding, list(islice(placed, len(of))), dtype=device_dtype(leaf.dtype)
        )
        for leaf, sharding, of in zip(leaves, shardings, indices, strict=True)
    ]


# The layouts of batches.


class _BatchLayouts:
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


# Batches on the host.


# Batches on the host: elements gathered into batches, and batches checked for their size.


class _ElementKind(NamedTuple):
    """The structure that all elements of a batch have in common."""

    treedef: PyTreeDef
    leaves: list[tuple[tuple[int, ...], np.dtype]]  # shape and dtype of each


def _batched(elements: HostBatches, size: int) -> Generator[PyTree]:
    """Yields batches of `size` elements, the last of what is left; each overwrites the memory of the one before."""
    expected: _ElementKind | None = None
    buffers: list[np.ndarray] = []
    filled = 0
    with elements.open_source() as opened:  # Past the checks of batches: an element need not have rows.
        for index, element in enumerate(opened):
            row = host_batch(jax.tree.map(_as_row, element), f"Element {index} of the dataset")
            leaves, treedef = jax.tree.flatten(row)
            found = _ElementKind(treedef, [(leaf.shape[1:], leaf.dtype) for leaf in leaves])
            if expected is None:
                expected = found
                buffers = [np.empty((size, *leaf.shape[1:]), leaf.dtype) for leaf in leaves]
            _check_element(index, found, expected)
            for buffer, leaf in zip(buffers, leaves, strict=True):
                buffer[filled] = leaf[0]  # Copied at once: a source may overwrite its elements too.
            filled += 1
            if filled == size:
                yield jax.tree.unflatten(treedef, buffers)
                filled = 0
        if filled and expected is not None:
            yield expected.treedef.unflatten([buffer[:filled] for buffer in buffers])


def _of_size(batches: HostBatches, size: int) -> Generator[PyTree]:
    """Yields the batches, and checks that each has `size` rows; the last may have fewer."""
    with contextlib.closing(iter(batches)) as opened:
        last = size
        for index, batch in enumerate(opened):
            if last < size:
                raise BatchError(
                    f"Batch {index - 1} of the dataset has {last} rows, fewer than global_batch_size={size}, but batch "
                    f"{index} follows. Only the last batch may be smaller."
                )
            last = count_rows(batch)
            if last > size:
                raise BatchError(
                    f"Batch {index} of the dataset has {last} rows, more than global_batch_size={size}. A dataset that "
                    "is _batched already yields global batches: pass their size as global_batch_size."
                )
            yield batch


def _as_row(leaf: Leaf) -> Leaf:
    """Returns a leaf of an element as a batch of one row. Anything else stays as it is; `host_batch` refuses it."""
    if isinstance(leaf, np.ndarray) or hasattr(leaf, "unsqueeze"):  # A torch tensor: the row shares its memory.
        return leaf[None]
    if is_array(leaf) or isinstance(leaf, (bool, int, float, complex)):
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            return np.asarray(leaf)[None]
    return leaf


def _check_element(index: int, found: _ElementKind, expected: _ElementKind) -> None:
    if found != expected:
        before, now = (
            f"{treedef} of " + ", ".join(f"{dtype}{list(shape)}" for shape, dtype in leaves)
            for treedef, leaves in (expected, found)
        )
        raise BatchError(
            f"Element {index} of the dataset differs in structure, shape or dtype from the elements before it.\n"
            f"  before: {before}\n  element {index}: {now}\nA batch needs equal elements: pad them to one shape."
        )
