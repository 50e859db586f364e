"""Arrays as Orbax writes and reads them: a folder of zarr chunks each. Read in Orbax 0.12.

Orbax's own checkpointers wait for each other through computations on the devices, and a process whose disk is full
leaves the others waiting. So only its handler is used, for the arrays' files; the processes meet in
`replicax.checkpoint.coordination`. The handler belongs to Orbax's first API, which `v1` is to follow. When it goes,
`tensorstore` is used instead, with its driver `zarr`: that is what the files are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np

if TYPE_CHECKING:
    import orbax.checkpoint as ocp

_TREE = "_METADATA"  # the file that names the arrays
_KEY_OF_DICT = 2


def save_files(path: Path, arrays: Mapping[str, jax.Array | np.ndarray]) -> None:
    """Writes arrays, each to the folder of `path` that is its key."""
    import orbax.checkpoint as ocp
    from etils import epath  # Orbax's handlers take its paths only.

    handler = _handler()
    try:
        handler.save(epath.Path(path), args=ocp.args.PyTreeSave(dict(arrays)))
    finally:
        handler.close()


def save_files_alone(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes the files of `save_files` in one process of several: Orbax writes NumPy arrays in JAX's process 0 only."""
    # Guard: tests/compat/test_orbax.py compares the files.
    import tensorstore

    written = []
    for folder, array in arrays.items():
        chunks = [max(1, size) for size in array.shape]
        compressed = {"compressor": {"id": "zstd", "level": 1}, "shape": list(array.shape), "chunks": chunks}
        store = {"driver": "file", "path": f"{path / folder}/"}
        spec = {"driver": "zarr", "kvstore": store, "metadata": compressed, "dtype": array.dtype.name, "create": True}
        written.append(tensorstore.open(spec).result().write(array))
    for each in written:
        each.result()
    value = {"value_type": "np.ndarray", "skip_deserialize": False}
    tree = {
        f"('{folder}',)": {"key_metadata": [{"key": folder, "key_type": _KEY_OF_DICT}], "value_metadata": value}
        for folder in arrays
    }
    kinds = {"use_ocdbt": False, "use_zarr3": False, "store_array_data_equal_to_fill_value": True}
    (path / _TREE).write_text(json.dumps({"tree_metadata": tree, **kinds, "custom_metadata": None}), encoding="utf-8")


def restore_files(
    path: Path, folders: Sequence[str], wanted: Mapping[str, jax.ShapeDtypeStruct]
) -> dict[str, jax.Array | np.ndarray]:
    """Reads the arrays of the `wanted` folders, out of all `folders`; one without a sharding as NumPy's."""
    import orbax.checkpoint as ocp
    from etils import epath

    item = {folder: wanted.get(folder, ocp.PLACEHOLDER) for folder in folders}
    arguments = {f: _restore_args(wanted[f]) if f in wanted else ocp.RestoreArgs() for f in folders}
    handler = _handler()
    try:
        found = handler.restore(epath.Path(path), args=ocp.args.PyTreeRestore(item, restore_args=arguments))
    finally:
        handler.close()
    return {folder: found[folder] for folder in wanted}


def _handler() -> ocp.PyTreeCheckpointHandler:
    import orbax.checkpoint as ocp

    # An array's files in a folder of its own, so that a damaged file is a damaged array, not all of them.
    return ocp.PyTreeCheckpointHandler(use_ocdbt=False)


def _restore_args(wanted: jax.ShapeDtypeStruct) -> ocp.RestoreArgs:
    import orbax.checkpoint as ocp

    if wanted.sharding is None:
        return ocp.RestoreArgs(restore_type=np.ndarray, dtype=wanted.dtype)
    return ocp.ArrayRestoreArgs(sharding=wanted.sharding, dtype=wanted.dtype, global_shape=wanted.shape)
