"""Arrays as Orbax writes and reads them: a folder of zarr chunks each.

Orbax's own checkpointers wait for each other through computations on the devices, and a process whose disk is full
leaves the others waiting. So only its handler is used, for the arrays' files; the processes meet in
`replicax.checkpoint.coordination`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np


def save_files(path: Path, arrays: Mapping[str, Any]) -> None:
    """Writes arrays, each to the folder of `path` that is its key."""
    import orbax.checkpoint as ocp

    handler = _handler()
    try:
        handler.save(_orbax_path(path), args=ocp.args.PyTreeSave(dict(arrays)))
    finally:
        handler.close()


def restore_files(path: Path, folders: list[str], wanted: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, Any]:
    """Reads arrays.

    Args:
        path: Where their folders are.
        folders: All of them.
        wanted: For the folders of those to read: shape, dtype, and sharding, or none for a NumPy array.
    """
    import orbax.checkpoint as ocp

    item = {folder: wanted.get(folder, ocp.PLACEHOLDER) for folder in folders}
    arguments = {f: _restore_args(ocp, wanted[f]) if f in wanted else ocp.RestoreArgs() for f in folders}
    handler = _handler()
    try:
        found = handler.restore(_orbax_path(path), args=ocp.args.PyTreeRestore(item, restore_args=arguments))
    finally:
        handler.close()
    return {folder: found[folder] for folder in wanted}


def _handler() -> Any:
    import orbax.checkpoint as ocp

    # An array's files in a folder of its own, so that a damaged file is a damaged array, not all of them.
    return ocp.PyTreeCheckpointHandler(use_ocdbt=False)


def _orbax_path(path: Path) -> Any:
    from etils import epath

    return epath.Path(path)


def _restore_args(ocp: Any, wanted: jax.ShapeDtypeStruct) -> Any:
    if wanted.sharding is None:
        return ocp.RestoreArgs(restore_type=np.ndarray, dtype=wanted.dtype)
    return ocp.ArrayRestoreArgs(sharding=wanted.sharding, dtype=wanted.dtype, global_shape=wanted.shape)
