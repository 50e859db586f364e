"""Datasets of DTensors: global batches, cut over a mesh as layouts say."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Generator, Iterable
from itertools import islice
from typing import Any

import jax
import numpy as np

from replicax.data.batches import count_rows, host_batch, is_array
from replicax.data.iterator import DistributedIterator
from replicax.data.options import InputOptions
from replicax.data.placement import device_dtype, owned_copy
from replicax.data.prefetch import prefetch as prefetched
from replicax.data.sources import HostBatches, host_batches
from replicax.dtensor.layout import MATCH, UNSHARDED, Layout, Spec
from replicax.dtensor.mesh import Mesh
from replicax.dtensor.placement import checked_layout
from replicax.errors import ArgumentError, BatchError, LayoutError


class DTensorDataset(Iterable[Any]):
    """A dataset whose elements are global batches over a mesh: nests of DTensors.

    Each iteration is a new pass over the source. Batches keep the source's order: on a mesh dimension that cuts the
    batch into k parts, part i of the t-th batch are its rows `i * size / k` and following.

    Every client (process) passes the same dataset, in the same order; each puts only its own devices' rows on them.

    Args:
        dataset: Where the elements come from. Arrays, or a nest of them that is not a list: their rows. Anything else
            that yields elements: a list, a Grain dataset or `DataLoader`, a torch `Dataset` or `DataLoader`, a
            `tf.data.Dataset`, an object with `__len__` and `__getitem__`, or a function without arguments that returns
            one of these or a generator. An element is a nest of arrays and numbers. An iterator can be passed over
            once.
        mesh: The mesh: a `Mesh`, a `jax.sharding.Mesh` or a `keras.distribution.DeviceMesh`.
        layouts: Nest like an element, with the `Layout` of each batched leaf: its rank is one more than the element's.
            A single layout is for all leaves.
        global_batch_size: Number of rows of a batch, over all devices and clients.
        dataset_already_batched: Whether the dataset yields batches. They are global ones: of `global_batch_size` rows,
            only the last may have fewer. (TensorFlow wants them in the size that one device gets.)
        batch_dim: The mesh dimension (or tuple of them) that cuts the batch: the first entry of every layout. None if
            every device gets whole batches: then that entry is `UNSHARDED`.
        prefetch: How many batches a background thread keeps ready on the devices; 0 or None prepares each one when it
            is asked for.
        remainder: What happens to a last batch with fewer rows. `"exact"` loses nothing: if the rows do not divide,
            the dimension of the batch is left whole in this batch, so that each device holds all its rows. `"drop"`
            leaves the batch out, as TensorFlow does.

    Raises:
        LayoutError: The layouts do not have the structure of the elements, the rank of a batch, or the mesh; a first
            entry is not `batch_dim`; `batch_dim` is not a dimension of the mesh or does not divide
            `global_batch_size`. Where elements are known only by looking, it is raised in the first pass.
        ArgumentError: An argument has the wrong type or value.
        BatchError: Arrays were given that disagree in their number of rows, or have none (or too few, if dropped).

    Example:
        >>> from replicax.dtensor import create_mesh
        >>> mesh = create_mesh([("batch", 4), ("model", 2)])
        >>> layouts = (Layout(["batch", "model"], mesh), Layout(["batch"], mesh))
        >>> data = np.zeros((10, 6), np.float32), np.arange(10)
        >>> dataset = DTensorDataset(data, mesh=mesh, layouts=layouts, global_batch_size=8, batch_dim="batch")
        >>> [(x.sharding.shard_shape(x.shape), y.shape) for x, y in dataset]
        [((2, 3), (8,)), ((2, 3), (2,))]
    """

    def __init__(
        self,
        dataset: Any,
        *,
        mesh: Any,
        layouts: Any,
        global_batch_size: int,
        dataset_already_batched: bool = False,
        batch_dim: Spec | None = None,
        prefetch: int | None = 2,
        remainder: str = "exact",
    ):
        self._options = InputOptions(prefetch=0 if prefetch is None else prefetch, remainder=remainder)
        self._size = _checked_size(global_batch_size)
        self._layouts = _BatchLayouts(layouts, Mesh.of(mesh), batch_dim, self._size)
        self._batches, self._count_rows = _source_of(dataset, self._size, dataset_already_batched)
        self._spec: Any = None
        self._peeked_pass: Generator[tuple[Any, list[Layout]]] | None = None
        if _is_arrays(dataset):
            self._look_at_first()

    def __iter__(self) -> DistributedIterator:
        batches, self._peeked_pass = self._peeked_pass or self._open_pass(), None
        return DistributedIterator(prefetched(self._place(batches), self._options.prefetch))

    def __bool__(self) -> bool:
        return True  # Else Python would ask `__len__`, which not every dataset knows.

    def __len__(self) -> int:
        """Number of batches of a pass, where the source has a length.

        A Grain dataset with a `filter` counts what the filter takes away. With remainder="drop" and a dataset that is
        batched already, the last batch is counted, whatever its size.

        Raises:
            ArgumentError: The source does not know (it is a TypeError too).
        """
        if self._count_rows is None:
            return len(self._batches)
        rows = self._count_rows()
        return rows // self._size if self._options.remainder == "drop" else -(-rows // self._size)

    @property
    def element_spec(self) -> Any:
        """What a full batch is like: a nest of `jax.ShapeDtypeStruct`, with the global shape and the sharding.

        Before the first pass the source is opened to look at its first batch. No data is lost: an iterator's first
        batch is kept for the coming pass; other sources start anew.

        Raises:
            BatchError: There is no batch.
        """
        if self._spec is None:
            self._look_at_first()
        return self._spec

    def _look_at_first(self) -> None:
        batches = self._open_pass()
        first = next(batches, None)
        if first is None:
            raise BatchError("The dataset has no batch, so what its elements look like is unknown.")
        if self._batches.one_shot:
            self._peeked_pass = _resume(first, batches)
        else:
            batches.close()

    def _open_pass(self) -> Generator[tuple[Any, list[Layout]]]:
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
                "rows. Use a smaller one or remainder='exact'."
            )
        if self._spec is not None:
            raise BatchError(
                "The dataset gave batches before, but none in this pass: its source probably returns the same used-up "
                "iterator again. Give something that starts anew each time, such as a function that makes an iterator."
            )

    def _place(self, batches: Generator[tuple[Any, list[Layout]]]) -> Generator[Any]:
        with contextlib.closing(batches):
            for batch, layouts in batches:
                leaves, treedef = jax.tree.flatten(batch)
                yield jax.tree.unflatten(treedef, _placed(leaves, layouts))


class _BatchLayouts:
    """The layouts of a dataset's batches, checked."""

    def __init__(self, layouts: Any, mesh: Mesh, batch_dim: Spec | None, size: int):
        leaves, self._treedef = jax.tree.flatten(layouts)
        self._size = size
        self._single = isinstance(layouts, Layout)
        self._cut = [checked_layout(layout) for layout in leaves]
        spec = UNSHARDED if batch_dim is None else Layout([batch_dim], mesh).sharding_specs[0]
        for layout in self._cut:
            _check_layout(layout, mesh, spec)
        self._parts = Layout([spec], mesh).num_shards(0)
        if size % self._parts:
            raise LayoutError(
                f"global_batch_size={size} does not divide by {self._parts}, the size of batch_dim={batch_dim!r} of "
                f"{mesh!r}. Use a multiple of {self._parts}."
            )
        self._whole = [Layout([UNSHARDED, *layout.sharding_specs[1:]], mesh) for layout in self._cut]

    def of_batch(self, batch: Any) -> list[Layout]:
        """Returns the layout of each leaf: cut into rows where they divide.

        Raises:
            LayoutError: The layouts do not fit the structure, a rank, or a length.
        """
        layouts = self._for_structure(batch, self._whole if count_rows(batch) % self._parts else self._cut)
        for layout, (path, leaf) in zip(layouts, jax.tree_util.tree_leaves_with_path(batch), strict=True):
            if layout.rank != leaf.ndim:
                raise LayoutError(
                    f"Batches{_at(path)} have the shape (rows, {', '.join(map(str, leaf.shape[1:]))}), of rank "
                    f"{leaf.ndim}, and the layout is for rank {layout.rank}: {layout!r}. It needs an entry for the "
                    "batch and one for each dimension of an element."
                )
            layout.check_shape(leaf.shape)
        return layouts

    def spec(self, batch: Any) -> Any:
        """Returns what a full batch is like, given any batch that `of_batch` has checked."""
        leaves, treedef = jax.tree.flatten(batch)
        specs = [
            jax.ShapeDtypeStruct((self._size, *leaf.shape[1:]), device_dtype(leaf.dtype), sharding=layout.to_sharding())
            for leaf, layout in zip(leaves, self._for_structure(batch, self._cut), strict=True)
        ]
        return jax.tree.unflatten(treedef, specs)

    def _for_structure(self, batch: Any, layouts: list[Layout]) -> list[Layout]:
        found: Any = jax.tree.structure(batch)
        if self._single:
            return layouts * found.num_leaves
        if found != self._treedef:
            raise LayoutError(
                f"`layouts` must be a nest like an element of the dataset.\n  element: {found}\n  layouts: "
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
            f"{layout!r} cuts the batch by {first!r}, but no batch_dim is given. Pass batch_dim={first!r}, or make the "
            "first entry UNSHARDED if every device is to hold all rows."
        )
    if first != spec:
        raise LayoutError(f"The first entry of a layout must be batch_dim={spec!r}, got {first!r} in {layout!r}.")


def _at(path: Any) -> str:
    return f" at leaf {jax.tree_util.keystr(path)}" if path else ""


def _checked_size(global_batch_size: Any) -> int:
    try:
        size = -1 if isinstance(global_batch_size, bool) else operator.index(global_batch_size)
    except TypeError:
        size = -1
    if size < 1:
        raise ArgumentError(f"`global_batch_size` is a number of rows, at least 1, got {global_batch_size!r}.")
    return size


# Batches on the host.


def _is_arrays(dataset: Any) -> bool:
    """Whether `dataset` is data itself, not something that yields it. A list is not: it is a list of elements."""
    if dataset is None or isinstance(dataset, list):
        return False
    return is_array(dataset) or not jax.tree_util.all_leaves([dataset])


def _source_of(dataset: Any, size: int, already_batched: bool) -> tuple[HostBatches, Callable[[], int] | None]:
    """Returns the batches of a dataset and what counts its rows, None where only its batches can be counted."""
    if isinstance(dataset, DTensorDataset):
        raise ArgumentError("This dataset is one of DTensors already; pass the dataset that it was made from.")
    if _is_arrays(dataset):
        if already_batched:
            raise ArgumentError(
                f"dataset_already_batched=True is for a dataset that yields batches, but a {type(dataset).__name__} of "
                "arrays is their rows: leave it out. (If it is a collection of batches, make it a list.)"
            )
        rows = count_rows(host_batch(dataset, "The dataset"))
        return host_batches(dataset, size), lambda: rows
    elements = host_batches(dataset)
    if already_batched:
        return elements, None
    batches = HostBatches(lambda: _batched(elements, size), elements.name, one_shot=elements.one_shot)
    return batches, lambda: len(elements)


def _batched(elements: HostBatches, size: int) -> Generator[Any]:
    """Yields batches of `size` elements, the last one of what is left.

    A batch is in memory that the next one overwrites. Elements are copied as they come, as a source may do so too.
    """
    source = elements._open_source()  # Past the checks of batches: an element need not have rows.
    expected: Any = None
    buffers: list[np.ndarray] = []
    filled = 0
    try:
        for index, element in enumerate(source):
            row = host_batch(jax.tree.map(_as_row, element), f"Element {index} of the dataset")
            leaves, treedef = jax.tree.flatten(row)
            found = treedef, [(leaf.shape[1:], leaf.dtype) for leaf in leaves]
            if expected is None:
                expected = found
                buffers = [np.empty((size, *leaf.shape[1:]), leaf.dtype) for leaf in leaves]
            _check_element(index, found, expected)
            for buffer, leaf in zip(buffers, leaves, strict=True):
                buffer[filled] = leaf[0]
            filled += 1
            if filled == size:
                yield jax.tree.unflatten(treedef, buffers)
                filled = 0
        if filled:
            yield expected[0].unflatten([buffer[:filled] for buffer in buffers])
    finally:
        close = getattr(source, "close", None)
        if close is not None and not elements.one_shot:  # An iterator that the user made is the user's to close.
            close()


def _as_row(leaf: Any) -> Any:
    """Returns a leaf of an element as a batch of one row; what is no array as it is, for `host_batch` to refuse."""
    if isinstance(leaf, np.ndarray) or hasattr(leaf, "unsqueeze"):  # torch's share their memory
        return leaf[None]
    if is_array(leaf) or isinstance(leaf, (bool, int, float, complex)):
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            return np.asarray(leaf)[None]
    return leaf


def _check_element(index: int, found: Any, expected: Any) -> None:
    if found != expected:
        before, now = (
            f"{treedef} of " + ", ".join(f"{dtype}{list(shape)}" for shape, dtype in leaves)
            for treedef, leaves in (expected, found)
        )
        raise BatchError(
            f"Element {index} of the dataset differs in structure, shape or dtype from the elements before it.\n"
            f"  before: {before}\n  element {index}: {now}\nOnly equal ones make a batch: pad them to one shape."
        )


def _of_size(batches: HostBatches, size: int) -> Generator[Any]:
    """Yields the batches; checks that all have `size` rows but the last, which may have fewer."""
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
                    "is batched already yields global batches: give their size as global_batch_size."
                )
            yield batch


def _resume(first: Any, rest: Generator[Any]) -> Generator[Any]:
    with contextlib.closing(rest):
        yield first
        yield from rest


# Onto the devices.


def _placed(leaves: list[np.ndarray], layouts: list[Layout]) -> list[jax.Array]:
    """Puts arrays on the devices of a mesh: on those of this process, each its part. One transfer for all."""
    shardings = [layout.to_sharding() for layout in layouts]
    if shardings[0].is_fully_addressable:
        return jax.device_put([owned_copy(leaf) for leaf in leaves], shardings)
    # Given a whole array and devices of other processes too, device_put would ask those whether theirs is equal.
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
