"""The mesh of `LayoutStrategy`: devices in a grid whose axes have names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from replicax.checks import is_int
from replicax.errors import ArgumentError, DeviceError

if TYPE_CHECKING:
    import keras

#: The names of the axes where a user gives none: those of Keras and KerasHub.
DATA, MODEL = "batch", "model"


class Grid(NamedTuple):
    """Devices and the names of the dimensions of their array."""

    devices: np.ndarray
    names: tuple[str, ...]

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the axes by their names."""
        return dict(zip(self.names, self.devices.shape, strict=True))


def grid_of_shape(
    mesh_shape: int | Sequence[int] | Mapping[str, int] | None,
    devices: Sequence[jax.Device],
    prefers_model: bool,
    takes_all: bool,
) -> Grid:
    """Returns devices, of which the last axis moves fastest, as a mesh of a shape."""
    # Unless it takes all devices, the first ones are enough.
    sizes = _sizes(mesh_shape, prefers_model)
    missing = [name for name, size in sizes.items() if size == -1]
    known = math.prod(size for size in sizes.values() if size != -1)
    if len(missing) == 1 and len(devices) % known == 0:
        sizes[missing[0]] = len(devices) // known
    wanted = math.prod(sizes.values())
    if min(sizes.values()) < 1 or len(devices) < wanted or (len(devices) != wanted and takes_all):
        needed = f"a multiple of {known}" if missing else str(known)
        raise DeviceError(
            f"A mesh of shape {sizes} needs {needed} devices, and there are {len(devices)}. One of the sizes may be "
            "-1, for as many as are left. rx.config.set_virtual_devices(n) at the top of the program makes virtual "
            "CPU devices."
        )
    grid = np.empty(wanted, dtype=object)
    grid[:] = devices[:wanted]
    return Grid(grid.reshape(tuple(sizes.values())), tuple(sizes))


def _sizes(mesh_shape: int | Sequence[int] | Mapping[str, int] | None, prefers_model: bool) -> dict[str, int]:
    if isinstance(mesh_shape, Mapping):
        sizes = dict(mesh_shape)
    else:
        shape = (-1,) if mesh_shape is None else (mesh_shape,) if is_int(mesh_shape) else mesh_shape
        if not isinstance(shape, Sequence) or isinstance(shape, str) or not 1 <= len(shape) <= 2:
            raise ArgumentError(
                f"`mesh_shape` has one or two sizes, such as (2, 4), or names its axes, such as {{'batch': 2, 'model': "
                f"4}}; got {mesh_shape!r:.100}. Its first axis is that of the data."
            )
        if len(shape) == 1 and prefers_model:
            # All devices share the work of one replica.
            shape = (1, *shape)
        sizes = dict(zip((DATA, MODEL), shape, strict=False))
    bad = {name: size for name, size in sizes.items() if not is_int(size) or (size < 1 and size != -1)}
    if bad or not sizes or not all(isinstance(name, str) for name in sizes):
        raise ArgumentError(
            f"The sizes of a mesh's axes are ints of at least 1, or -1 for what is left, got {mesh_shape!r:.100}."
        )
    return sizes


def grid_of_mesh(mesh: Mesh | keras.distribution.DeviceMesh) -> Grid:
    """Returns the devices of a mesh of JAX's or Keras's, and the names of its axes."""
    if isinstance(mesh, Mesh):
        return Grid(mesh.devices, tuple(mesh.axis_names))
    backend = getattr(mesh, "backend_mesh", None)  # a keras.distribution.DeviceMesh
    if isinstance(backend, Mesh):
        return Grid(backend.devices, tuple(backend.axis_names))
    raise ArgumentError(f"`mesh` is a jax.sharding.Mesh or a keras.distribution.DeviceMesh, got {mesh!r:.100}.")
