"""Keras's own loading and saving of files: tensors are read in pieces, after a check that all of them fit."""

from __future__ import annotations

import contextlib
import functools
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import replicax.compat.keras_files as keras_files
import replicax.context as context
from replicax.compat.keras import sublayers
from replicax.contracts.strategy import owner_of
from replicax.contracts.variable_access import VariableLike
from replicax.errors import WeightsError
from replicax.runtime import clock
from replicax.typing import PyTreeFunction
from replicax.weights.h5 import OpenPlace, Place, entries_of, member_place, tensor_of
from replicax.weights.matching import Entry
from replicax.weights.reading import Reading, StoredTensor

if TYPE_CHECKING:
    import h5py
    import keras

_OF_TRAINING = ("/optimizer/",)  # State that a file may have and a model not, and the other way round.


class _Files:
    """The place of each HDF5 file that a store reads."""

    def __init__(self, store: object):
        self.reading = Reading(keras_files.name_of_store(store))
        archive = keras_files.archive_of(store)
        self.member = None if archive is None else member_place(*archive)

    def place_of(self, file: h5py.File) -> Place | OpenPlace:
        """Returns where a file lies: on the disk, or in memory, as members of an archive do that are compressed."""
        if self.member is not None:
            return self.member
        path = Path(file.filename) if isinstance(file.filename, str) else None
        return OpenPlace(Path(self.reading.path), file) if path is None or not path.is_file() else Place(path)


def load_state_in_pieces(original: PyTreeFunction) -> PyTreeFunction:
    """Wraps the function of Keras that gives each layer of a model what a file has for it."""

    @functools.wraps(original)
    def _load_state(
        saveable: keras.Model,
        weights_store: object,
        assets_store: object,
        inner_path: str,
        skip_mismatch: bool = False,
        visited_saveables: set[int] | None = None,
        failed_saveables: set[int] | None = None,
        error_msgs: dict[int, tuple[object, Exception]] | None = None,
    ) -> None:
        rest = skip_mismatch, visited_saveables, failed_saveables, error_msgs
        if inner_path or not _is_ours(saveable, weights_store):
            original(saveable, weights_store, assets_store, inner_path, *rest)
            return
        skipped = set(visited_saveables or ())
        with _read_in_pieces(weights_store) as reading:
            if not skip_mismatch:
                _check(original, saveable, weights_store, skipped, reading)
            original(saveable, weights_store, assets_store, inner_path, *rest)
        if error_msgs and not skip_mismatch:
            _, error = next(iter(error_msgs.values()))
            raise WeightsError(
                f"{reading.path} could not be read to its end, and the model has got a part of it: {error} Load it "
                "again when the file is whole."
            ) from error

    return _load_state


def _is_ours(model: object, store: object) -> bool:
    if not keras_files.is_h5_store(store) or hasattr(store, "_replicax_files"):
        return False
    return context.current().frame is None and any(map(_has_home, getattr(model, "variables", ())))


def _has_home(variable: VariableLike) -> bool:
    owner = owner_of(variable)
    return owner is not None and not owner.is_asynchronous and not owner.is_client


@contextlib.contextmanager
def _read_in_pieces(store: object) -> Iterator[Reading]:
    """Lets a store hand out tensors that are read later, in a `with` block."""
    files = _Files(store)
    store._replicax_files = files  # type: ignore[attr-defined]  # a store of Keras, which has no types
    try:
        yield files.reading
    except BaseException:
        store.close()  # type: ignore[attr-defined]  # After an error Keras leaves the file open.
        raise
    finally:
        del store._replicax_files  # type: ignore[attr-defined]


def tensor_or_array(store: object, key: str, original: PyTreeFunction) -> object:
    """Returns what a layer gets from a store: a tensor to be read later, while a model is loaded in pieces."""
    files: _Files | None = getattr(store, "_replicax_files", None)
    if files is None:
        return original(store, key)
    dataset = keras_files.dataset_of(store, key)
    files.reading.used.add(dataset.name)
    return StoredTensor(dataset.name, tensor_of(dataset, files.place_of(dataset.file)), files.reading)


def _check(original: PyTreeFunction, model: keras.Model, store: object, skipped: set[int], reading: Reading) -> None:
    """Loads a model as Keras does, without giving any variable a value, and checks that all fits."""
    errors: dict[int, tuple[object, Exception]] = {}
    try:
        with reading.only_checking():
            original(model, store, None, "", False, set(skipped), set(), errors)
        stored = _stored(store)
    except (OSError, KeyError, RuntimeError, TypeError, ValueError) as error:  # HDF5 raises all of these.
        raise WeightsError(f"{reading.path} is damaged; nothing has changed: {error}") from error
    cause = next((error for _, error in errors.values()), None)
    reading.check(_variables(model, skipped), stored, cause)


def _variables(model: keras.Model, skipped: set[int]) -> list[keras.Variable]:
    """Returns the weights of a model, without those of layers that are not to be loaded."""
    layers = [layer for layer in sublayers(model, include_self=True) if id(layer) in skipped]
    left_out = {id(variable) for layer in layers for variable in layer.weights}
    return [variable for variable in model.weights if id(variable) not in left_out]


def _stored(store: object) -> dict[str, Entry]:
    """Returns all tensors of a store, without the state of a training."""
    import h5py

    shards: Sequence[str] = keras_files.shard_files(store)
    if not shards:
        found = entries_of(store.h5_file)  # type: ignore[attr-defined]
    else:
        found = {}
        for path in shards:
            with h5py.File(path, "r") as file:
                found |= entries_of(file)
    return {name: entry for name, entry in found.items() if not name.startswith(_OF_TRAINING)}


def explained(original: PyTreeFunction, check: Callable[[keras.Model, str], None]) -> PyTreeFunction:
    """Wraps `Model.load_weights`: a file that is damaged is an error that names it, and says that nothing changed."""

    @clock.restoring
    def load(self: keras.Model, filepath: str, *args: object, **kwargs: object) -> None:
        if not any(map(_has_home, self.variables)):
            original(self, filepath, *args, **kwargs)
            return
        try:
            original(self, filepath, *args, **kwargs)
        except FileNotFoundError:
            raise
        except (OSError, KeyError, zipfile.BadZipFile) as error:
            raise WeightsError(
                f"{filepath} cannot be loaded; nothing has changed. It is damaged, or not copied completely: {error}"
            ) from error

    @functools.wraps(original)
    def load_weights(self: keras.Model, filepath: str, *args: object, **kwargs: object) -> None:
        check(self, filepath)
        load(self, filepath, *args, **kwargs)

    return load_weights
