"""Writing variables to files of safetensors, one at a time."""

from __future__ import annotations

import contextlib
import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import jax
import numpy as np

from replicax.checks import explained
from replicax.contracts.variable_access import AssignableLike, dtype_of, shape_of
from replicax.errors import ArgumentError, WeightsError
from replicax.weights.names import Model, check_names, named_tensor, named_variables
from replicax.weights.safetensors_format import INDEX, header_of
from replicax.weights.whole_value import on_host

_GB = 2**30


@explained
def save_safetensors(
    model: Model,
    path: str | os.PathLike[str],
    names: Mapping[str, str] | Callable[[str], str] | None = None,
    *,
    max_shard_size: float | None = None,
) -> None:
    """Writes the values of a model's variables to a file of safetensors; the host holds one of them at a time.

    The file appears under its name when it is complete. With several processes all of them call this together, and the
    first of them writes.

    Args:
        model: A Keras model or layer that is built, or a mapping from names to variables.
        path: The file. With `max_shard_size` a folder, in which `model.safetensors.index.json` lists the files.
        names: The tensors' names, as for `load_safetensors`; by default the variables'.
        max_shard_size: The most bytes of tensors in a file, in GB (2**30 bytes); a larger tensor has a file of its own.

    Raises:
        ArgumentError: As for `load_safetensors`, or two tensors would have the same name.
        WeightsError: A file cannot be written, or a dtype is none of the format.

    Example:
        >>> import os, tempfile, replicax as rx
        >>> folder = tempfile.mkdtemp()
        >>> rx.weights.save_safetensors({"scale": rx.Variable([1.0, 2.0])}, f"{folder}/model.safetensors")
        >>> os.listdir(folder)
        ['model.safetensors']
    """
    target, variables = Path(path), named_variables(model)
    check_names(names, variables)
    named = {name: named_tensor(names, name) for name in variables}
    tensors = {found[0]: variables[name] for name, found in named.items() if found is not None}
    lost = [name for name, found in named.items() if found is None]
    if lost or len(tensors) < len(variables):
        raise ArgumentError(
            f"`names` gives no tensor to {lost}."
            if lost
            else f"`names` gives two variables one tensor: {named!r:.200}."
        )
    from replicax.checkpoint.coordination import Coordination

    folder = target.parent if max_shard_size is None else target
    files = _files(tensors, target.name, max_shard_size)
    headers = {name: header_of((n, shape_of(tensors[n]), _dtype_of(tensors[n])) for n in files[name]) for name in files}
    coordination = Coordination(f"Saving the model to {target}")
    with _Writer(folder if coordination.is_chief else None) as writer:
        for name, members in files.items():
            writer.begin(name, headers[name])
            for tensor in members:  # All processes read each value, of which they have parts.
                writer.add(np.asarray(on_host(tensors[tensor])))
        if max_shard_size is not None:
            writer.begin(INDEX, _index(files, sum(map(_bytes_of, tensors.values()))))
        coordination.run("written", writer.finish, f"The model could not be saved to {target}")
    coordination.end()


class _Writer:
    """Writes files in a folder of their own, and names them at the end; without a folder it does nothing."""

    def __init__(self, folder: Path | None):
        self._folder, self._files = folder, dict[str, Path]()
        self._error: OSError | None = None
        self._stack = contextlib.ExitStack()
        self._file: BinaryIO | None = None
        self._staging: Path | None = None

    def __enter__(self) -> _Writer:
        self._try(self._make_staging)
        return self

    def __exit__(self, *exception: object) -> None:
        self._close()
        self._stack.close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()

    def begin(self, name: str, beginning: bytes) -> None:
        self._try(lambda: self._open(name, beginning))

    def add(self, values: np.ndarray) -> None:
        """Writes an array to the file that was begun last."""
        file = self._file
        if file is not None:
            self._try(lambda: file.write(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data))

    def finish(self) -> None:
        """Gives the files their names, or raises the first error."""
        self._try(self._rename)
        if self._error is not None:
            raise WeightsError(f"{self._folder} cannot be written to: {self._error}.") from self._error

    def _make_staging(self) -> None:
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            staging = tempfile.TemporaryDirectory(prefix=".saving-", dir=self._folder)
            self._staging = Path(self._stack.enter_context(staging))

    def _open(self, name: str, beginning: bytes) -> None:
        if self._staging is not None:
            self._close()
            self._file = open(self._staging / name, "wb")  # noqa: SIM115  # closed when the next one begins
            self._file.write(beginning)
            self._files[name] = self._staging / name

    def _rename(self) -> None:
        if self._file is not None and self._folder is not None:
            self._close()
            for name, path in self._files.items():
                with open(path, "rb") as file:
                    os.fsync(file.fileno())
                os.replace(path, self._folder / name)

    def _try(self, action: Callable[[], object]) -> None:
        # After an error it goes on without writing, and `finish` raises it: other processes wait for this one's part of
        # each value.
        try:
            if self._error is None:
                action()
        except OSError as error:
            self._error = error


def _index(files: Mapping[str, Sequence[str]], size: int) -> bytes:
    places = {tensor: name for name, names in files.items() for tensor in names}
    return json.dumps({"metadata": {"total_size": size}, "weight_map": places}, indent=2).encode()


def _dtype_of(variable: AssignableLike) -> np.dtype:
    return np.dtype(jax.dtypes.canonicalize_dtype(jax.numpy.dtype(dtype_of(variable))))


def _bytes_of(variable: AssignableLike) -> int:
    return math.prod(shape_of(variable)) * _dtype_of(variable).itemsize


def _files(tensors: Mapping[str, AssignableLike], name: str, max_shard_size: float | None) -> dict[str, list[str]]:
    """Returns the names of the tensors in each file, in their order."""
    if max_shard_size is None:
        return {name: list(tensors)}
    shards: list[list[str]] = [[]]
    size = 0
    for tensor, variable in tensors.items():
        if shards[-1] and size + _bytes_of(variable) > max_shard_size * _GB:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += _bytes_of(variable)
    return {f"model-{i:05d}-of-{len(shards):05d}.safetensors": names for i, names in enumerate(shards, 1)}
