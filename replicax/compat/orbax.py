"""Arrays as Orbax writes and reads them: a folder of zarr chunks each. Read in Orbax 0.12.

Orbax's own checkpointers wait for each other through computations on the devices, and a process whose disk is full
leaves the others waiting. So only its handler is used, for the arrays' files; the processes meet in
`replicax.checkpoint.coordination`. The handler belongs to Orbax's first API, which `v1` is to follow. When it goes,
`tensorstore` is used instead, with its driver `zarr`: that is what the files are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np

if TYPE_CHECKING:
    import orbax.checkpoint as ocp


def save_files(path: Path, arrays: Mapping[str, jax.Array | np.ndarray]) -> None:
    """Writes arrays, each to the folder of `path` that is its key."""
    import orbax.checkpoint as ocp
    from etils import epath  # Orbax's handlers take its paths only.

    handler = _handler()
    try:
        handler.save(epath.Path(path), args=ocp.args.PyTreeSave(dict(arrays)))
    finally:
        handler.close()


def restore_files(
    path: Path, folders: Sequence[str], wanted: Mapping[str, jax.ShapeDtypeStruct]
) -> dict[str, jax.Array | np.ndarray]:
    """Reads arrays.

    Args:
        path: Where their folders are.
        folders: All of them.
        wanted: For the folders of those to read: shape, dtype, and sharding, or none for a NumPy array.
    """
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
