"""How Keras reads and writes files of weights. Read in Keras 3.15.

Keras has no other place to read a tensor in pieces: its stores hand out whole arrays. Without these names
files are read as Keras reads them: each tensor whole, and of a `.keras` file all of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

from replicax.typing import PyTreeFunction

_READS_IN_PLACE: ContextVar[bool] = ContextVar("replicax_reads_archives_in_place", default=False)


def wrap_load_state(wrap: Callable[[PyTreeFunction], PyTreeFunction]) -> None:
    """Wraps the function that gives the layers of a model their parts of a store; it calls itself for each layer."""
    from keras.src.saving import saving_lib

    saving_lib._load_state = wrap(saving_lib._load_state)
    # Keras makes an object of each kind anew for each layer, to see its attributes: once is enough.
    saving_lib.get_attr_skipset = functools.cache(saving_lib.get_attr_skipset)


def wrap_stores(get: Callable[[Any, str, PyTreeFunction], object], on_host: Callable[[object], object]) -> None:
    """Wraps how a tensor is taken out of an HDF5 store, and how one becomes an array of the host to be put into it."""
    # `get` is called with the store, a key and Keras's own method; `on_host` returns what Keras is to store.
    from keras.src.saving import saving_lib

    own_get = saving_lib.H5IOStore.__getitem__
    saving_lib.H5IOStore.__getitem__ = functools.wraps(own_get)(lambda self, key: get(self, key, own_get))
    for store in (saving_lib.H5IOStore, saving_lib.ShardedH5IOStore):
        store.__setitem__ = _with_host_values(store.__setitem__, on_host)


def _with_host_values(original: PyTreeFunction, on_host: Callable[[object], object]) -> PyTreeFunction:
    @functools.wraps(original)
    def __setitem__(self: object, key: str, value: object) -> None:
        original(self, key, on_host(value))

    return __setitem__


def wrap_archives(
    is_ours: Callable[[object], bool], may_be_ours: Callable[[], bool], opened: Callable[[Any, str], Any]
) -> None:
    """Keeps Keras from holding the whole file of weights of an archive in memory."""
    # `is_ours` and `may_be_ours` say whether that matters, to a model and to one that is about to be made. `opened`
    # opens a member of an archive by its name, as a file; it returns None if Keras is to do it.
    import h5py
    from keras.src.saving import saving_lib

    is_sufficient, get_file = saving_lib.is_memory_sufficient, saving_lib.H5IOStore._get_h5_file
    load_model, load_weights = saving_lib._load_model_from_fileobj, saving_lib.load_weights_only

    @functools.wraps(is_sufficient)
    def is_memory_sufficient(model: object) -> bool:
        if _READS_IN_PLACE.get():
            # After an error Keras reads out of the archive; after a "no" it would first copy the file to the disk.
            raise MemoryError("The weights are read out of the archive.")
        return not is_ours(model) and is_sufficient(model)

    @functools.wraps(get_file)
    def _get_h5_file(self: Any, path_or_io: object, mode: str | None = None) -> object:
        reads = self.archive is not None and (mode or self.mode) == "r" and _READS_IN_PLACE.get()
        file = opened(self.archive, str(path_or_io)) if reads else None
        if file is None:
            return get_file(self, path_or_io, mode)
        self.io_file = file  # It is closed with the store.
        return h5py.File(file, "r")

    saving_lib.is_memory_sufficient = is_memory_sufficient
    saving_lib.H5IOStore._get_h5_file = _get_h5_file
    saving_lib._load_model_from_fileobj = _in_place(load_model, lambda fileobj: may_be_ours())
    saving_lib.load_weights_only = _in_place(load_weights, is_ours)


def _in_place(original: PyTreeFunction, decide: Callable[[object], bool]) -> PyTreeFunction:
    """Wraps a function in which archives are read in place, if its first argument decides so."""

    @functools.wraps(original)
    def load(first: object, *args: object, **kwargs: object) -> object:
        token = _READS_IN_PLACE.set(decide(first))
        try:
            return original(first, *args, **kwargs)
        finally:
            _READS_IN_PLACE.reset(token)

    return load


def is_h5_store(store: object) -> bool:
    """Returns whether a store is one of HDF5, of one file or of several."""
    from keras.src.saving import saving_lib

    return isinstance(store, saving_lib.H5IOStore)


def dataset_of(store: Any, key: str) -> Any:
    """Returns the HDF5 dataset of a key of the layer that a store is at, after Keras's checks of it."""
    from keras.src.saving import saving_lib

    return saving_lib.safe_get_h5_dataset(store._h5_entry_group, key)


def archive_of(store: Any) -> tuple[Any, str] | None:
    """Returns the archive that a store reads from and the name of its file there; None if it reads a file itself."""
    return (store.archive, str(store.path_or_io)) if store.archive is not None else None


def name_of_store(store: Any) -> str:
    """Returns what the file of a store is called in messages."""
    archive = archive_of(store)
    return str(getattr(store, "path", None) or store.path_or_io) if archive is None else str(archive[0].filename)


def shard_files(store: Any) -> list[str]:
    """Returns the paths of the files that a store of several lists, in their order; of a store of one file none."""
    weight_map: Mapping[str, str | list[str]] = getattr(store, "sharding_config", {}).get("weight_map", {})
    names = {name for names in weight_map.values() for name in ([names] if isinstance(names, str) else names)}
    return [str(store.path.with_name(name)) for name in sorted(names)]
