"""Checks of what a mesh is made of: names of dimensions, a label, an array of devices."""

from __future__ import annotations

import re
from collections.abc import Sequence

import jax
import numpy as np

from replicax.errors import MeshError

_RESERVED = ("unsharded", "match")
_DIM_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


def checked_names(dim_names: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of a mesh's dimensions as a tuple; a single string is one name.

    Raises:
        MeshError: A name is not well-formed, reserved or repeated.
    """
    names = (dim_names,) if isinstance(dim_names, str) else tuple(dim_names)
    for name in names:
        if not isinstance(name, str) or not _DIM_NAME.fullmatch(name) or name in _RESERVED:
            raise MeshError(
                f"Not a name for a mesh dimension: {name!r}. Use letters, digits, '_', '-' and '.', beginning with a "
                f"letter, and none of {_RESERVED}."
            )
    if len(set(names)) < len(names):
        raise MeshError(f"The names of mesh dimensions must differ, got {names}.")
    return names


def checked_label(name: str) -> str:
    """Returns a mesh's label.

    Raises:
        MeshError: It is not a string, or contains `|`, which separates the fields of a mesh's text.
    """
    if not isinstance(name, str) or "|" in name:
        raise MeshError(f"A mesh's name is a string without '|', got {name!r}.")
    return name


def check_devices(grid: np.ndarray, dim_names: tuple[str, ...]) -> None:
    """Checks that an array can be the devices of a mesh with these dimensions.

    Raises:
        MeshError: It has another rank, is empty, mixes platforms, holds something else than devices, or holds one
            twice.
    """
    if grid.ndim != len(dim_names) or not grid.size:
        raise MeshError(
            f"A mesh with the dimensions {dim_names} needs a non-empty array of devices of that rank, got shape "
            f"{grid.shape}."
        )
    others = [device for device in grid.flat if not isinstance(device, jax.Device)]
    if others:
        raise MeshError(f"A mesh is made of jax.Device, got {others[0]!r:.100}.")
    platforms = sorted({device.platform for device in grid.flat})
    if len(platforms) > 1:
        raise MeshError(f"All devices of a mesh must be of one type, got {platforms}.")
    seen = list(grid.flat)
    repeated = [device for device in dict.fromkeys(seen) if seen.count(device) > 1]
    if repeated:
        raise MeshError(f"A device can be in a mesh only once, but {repeated} came more than once.")
