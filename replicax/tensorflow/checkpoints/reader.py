"""`open_checkpoint`: a checkpoint of TensorFlow's, whatever its format, as tensors by name."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from replicax.checks import explained
from replicax.errors import CheckpointError
from replicax.tensorflow.checkpoints import object_graph
from replicax.tensorflow.checkpoints.bundle import Bundle
from replicax.tensorflow.checkpoints.hdf5 import HDF5, parsed_config
from replicax.tensorflow.checkpoints.locating import located
from replicax.tensorflow.checkpoints.object_graph import ObjectGraph
from replicax.tensorflow.checkpoints.saver_v1 import SaverV1
from replicax.tensorflow.checkpoints.tensors import Source, TensorInfo

SLOT = "/.OPTIMIZER_SLOT/"  # Between the names of a variable and of the optimizer that keeps the slot.
_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"


@dataclasses.dataclass(frozen=True)
class TensorFlowCheckpoint:
    """A checkpoint that TensorFlow or Keras 2 wrote. Its tensors are read one at a time, when they are asked for.

    Attributes:
        path: Its prefix or file.
        format: `"bundle"` (TensorFlow 2, `Saver`, SavedModel), `"saver_v1"` or `"hdf5"`.
        tensors: Its tensors by name, without their values.
        graph: The objects that `tf.train.Checkpoint` saved; None for files that only have names.
        layers: Of an HDF5 file of Keras's, the names of each layer's tensors, in the order of the layers.
        optimizer: Of an HDF5 file of Keras's, the names of the optimizer's tensors, in their order.
        optimizer_config: Of an HDF5 file of a whole model, the optimizer's `class_name` and `config`.

    Example:
        >>> checkpoint = rx.checkpoint.tensorflow.open_checkpoint("logs/ckpt-3")  # doctest: +SKIP
        >>> {name: info.shape for name, info in checkpoint.tensors.items()}  # doctest: +SKIP
        >>> checkpoint.read("model/dense/kernel/.ATTRIBUTES/VARIABLE_VALUE")  # doctest: +SKIP
    """

    path: Path
    format: str
    tensors: Mapping[str, TensorInfo]
    graph: ObjectGraph | None
    layers: Mapping[str, tuple[str, ...]]
    optimizer: tuple[str, ...]
    optimizer_config: Mapping[str, object]
    _source: Source = dataclasses.field(repr=False)

    def shown(self, name: str) -> str:
        """Returns the name of a tensor as messages and mappings have it.

        It has no end that all names have, and begins with the model where TensorFlow named it after the optimizer.
        """
        names = self.graph.names if self.graph is not None else {}
        return names.get(name, without_end(name))

    @property
    def step(self) -> int | None:
        """The training step: `global_step` if there is such a tensor, else the number at the end of the path."""
        info = self.tensors.get("global_step")
        if info is not None and info.shape == () and info.dtype is not None and info.dtype.kind in "iu":
            return int(self.read("global_step"))
        match = re.search(r"-(\d{1,18})$", self.path.name)
        return int(match[1]) if match else None

    def read(self, name: str, index: tuple[slice, ...] | None = None) -> np.ndarray:
        """Returns the values of a tensor; strings as `bytes` in an array of objects.

        All of the tensor is read and its checksum compared, but memory is taken for what is returned and some MiB.

        Args:
            name: Its name.
            index: The part that is asked for: slices, without steps, of its first axes.

        Raises:
            CheckpointError: There is no such tensor, only TensorFlow can read it, its file is damaged, or the index
                does not fit.
        """
        info = self.tensors.get(name)
        if info is None:
            close = difflib.get_close_matches(name, self.tensors, 3)
            hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
            raise CheckpointError(f"There is no tensor {name!r} in {self.path}.{hint}")
        if info.dtype is None:
            raise CheckpointError(f"{name!r} in {self.path} is of a type that only TensorFlow can read.")
        bounds = _bounds(info, index)
        with _told(self.path, name):
            return _assembled(self._source, info, bounds)

    def verify(self) -> dict[str, str]:
        """Reads everything. Returns for each damaged tensor what is wrong with it."""
        damaged = {}
        for name, info in self.tensors.items():
            try:
                if info.dtype is not None:
                    self.read(name, (slice(0, 0),) if info.shape else None)
            except CheckpointError as error:
                damaged[name] = str(error)
        return damaged


@explained
def open_checkpoint(path: str | os.PathLike[str]) -> TensorFlowCheckpoint:
    """Opens a checkpoint that TensorFlow or Keras 2 wrote; needs no TensorFlow.

    Args:
        path: A prefix (`folder/ckpt-3`) or a file of it, a folder whose `checkpoint` file names the latest one, a
            SavedModel, or an HDF5 file of weights or of a model.

    Raises:
        CheckpointError: There is none, it is damaged, or a file of it is missing.

    Example:
        >>> with rx.checkpoint.tensorflow.open_checkpoint("training/ckpt-3") as found:  # doctest: +SKIP
        ...     print(found.tensors)
    """
    path = Path(path).absolute()
    with _told(path):
        kind, place = located(path)
    with _told(place):
        if kind == "hdf5":
            weights = HDF5(place)
            config = parsed_config(weights.training_config) if weights.training_config else {}
            return TensorFlowCheckpoint(
                place, kind, weights.tensors, None, weights.layers, weights.optimizer, config, weights
            )
        source = Bundle(place) if kind == "bundle" else SaverV1(place)
        opened = TensorFlowCheckpoint(place, kind, source.tensors, None, {}, (), {}, source)
        if object_graph.KEY not in source.tensors:
            return opened
        value = opened.read(object_graph.KEY)
        if value.shape != () or not isinstance(value[()], bytes):
            raise ValueError(f"{object_graph.KEY} is not one string")
        tensors = {name: info for name, info in source.tensors.items() if name != object_graph.KEY}
        return dataclasses.replace(opened, tensors=tensors, graph=object_graph.parsed(value[()]))


def without_end(name: str) -> str:
    """Returns the name of a tensor without the end that all have which `tf.train.Checkpoint` wrote."""
    return name.removesuffix(_SUFFIX)


def _bounds(info: TensorInfo, index: tuple[slice, ...] | None) -> list[tuple[int, int]]:
    index = index or ()
    if len(index) > len(info.shape) or any(part.step not in (None, 1) for part in index):
        raise CheckpointError(f"{index} is no index of {info.name!r}, which has shape {info.shape}: give plain slices.")
    index = (*index, *(slice(None) for _ in info.shape[len(index) :]))
    pairs = (part.indices(length) for part, length in zip(index, info.shape, strict=True))
    return [(start, max(start, stop)) for start, stop, _ in pairs]


def _assembled(source: Source, info: TensorInfo, bounds: list[tuple[int, int]]) -> np.ndarray:
    result = np.empty([stop - start for start, stop in bounds], info.dtype)
    filled = 0
    for starts, values in source.parts(info.name):
        there, here = list[slice](), list[slice]()
        for (start, stop), begin, length in zip(bounds, starts, values.shape, strict=True):
            low, high = max(start, begin), min(stop, begin + length)
            there.append(slice(low - start, max(low, high) - start))
            here.append(slice(low - begin, max(low, high) - begin))
        part = values[tuple(here) or ...]  # A scalar has no axes, and is to stay an array.
        result[tuple(there) or ...] = part
        filled += part.size
    if filled != result.size:
        raise ValueError(f"its parts have {filled} of {result.size} values")
    return result


@contextlib.contextmanager
def _told(path: Path, name: str = "") -> Iterator[None]:
    """Raises what is wrong with a file as a `CheckpointError` that names it."""
    try:
        yield
    except (OSError, ValueError, OverflowError, MemoryError) as error:
        if isinstance(error, CheckpointError):
            raise
        what = f"The tensor {name!r} in {path}" if name else str(path)
        raise CheckpointError(f"{what} cannot be read: {error}") from error
