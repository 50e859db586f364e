"""Meshes: the devices of a computation as an array whose dimensions have names."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import jax
import numpy as np
from jax.sharding import AxisType
from numpy.typing import ArrayLike

from replicax.checks import explained, is_int
from replicax.contracts.advice import Advised
from replicax.contracts.called_as import called_as
from replicax.contracts.shown import Shown, html_table
from replicax.errors import DeviceError, MeshError
from replicax.runtime.devices import device_name, parse_devices

if TYPE_CHECKING:
    import keras

#: Every parameter that is a mesh takes any of these.
MeshLike: TypeAlias = "Mesh | jax.sharding.Mesh | keras.distribution.DeviceMesh"

_MOST_DEVICES_SHOWN = 256


class MeshDimension(NamedTuple):
    """A dimension of a mesh, as `mesh["batch"]` returns it.

    Attributes:
        name: Its name.
        size: Its size.

    Example:
        >>> rx.dtensor.create_mesh([("x", 2), ("y", 4)])["y"]
        MeshDimension(name='y', size=4)
    """

    name: str
    size: int


@explained
class Mesh(Advised):
    """Devices as an array with named dimensions; immutable.

    Devices are in row-major order of the dimensions: on a mesh of x=2, y=3, device 4 has the coordinates (1, 1). Two
    meshes are equal if their dimensions and devices are equal; the name is only a label.

    Args:
        dim_names: A name for each dimension: letters, digits, `_`, `-`, `.`, not beginning with a digit.
        devices: Array of `jax.Device` with as many dimensions as there are names.
        name: A label.

    Raises:
        MeshError: A name is repeated, reserved (`"unsharded"`, `"match"`) or not well-formed; `devices` has another
            rank, is empty, mixes platforms, holds something else than devices, or holds one twice.

    Attributes:
        dim_names: Tuple of the dimensions' names.
        name: The label.
        jax_mesh: The same mesh as a `jax.sharding.Mesh`, with axes of type Auto.

    Example:
        >>> mesh = rx.dtensor.create_mesh([("x", 2), ("y", 4)])
        >>> mesh.dim_size("y"), mesh.size
        (4, 8)
    """

    @called_as("tf.experimental.dtensor.Mesh")
    def __init__(self, dim_names: Sequence[str], devices: ArrayLike, name: str = ""):
        self.dim_names = checked_names(dim_names)
        self.name = checked_label(name)
        grid = np.array(devices, dtype=object)
        check_devices(grid, self.dim_names)
        self.jax_mesh = jax.sharding.Mesh(grid, self.dim_names, axis_types=(AxisType.Auto,) * grid.ndim)
        self._key = (self.dim_names, grid.shape, tuple(grid.flat))
        self._frozen = True

    def __setattr__(self, attribute: str, value: object) -> None:
        if getattr(self, "_frozen", False):
            raise AttributeError(f"A Mesh is immutable: cannot set {attribute!r}. Make another one.")
        super().__setattr__(attribute, value)

    @classmethod
    def of(cls, mesh: MeshLike) -> Mesh:
        """Returns a `Mesh`, `jax.sharding.Mesh` or `keras.distribution.DeviceMesh` as a `Mesh`.

        Raises:
            MeshError: It is none of those.
        """
        if isinstance(mesh, cls):
            return mesh
        jax_mesh = mesh if isinstance(mesh, jax.sharding.Mesh) else getattr(mesh, "backend_mesh", None)
        if not isinstance(jax_mesh, jax.sharding.Mesh):
            raise MeshError(
                f"Not a mesh: {mesh!r:.100}. Make one with rx.dtensor.create_mesh([('batch', 4), ('model', 2)])."
            )
        return cls(jax_mesh.axis_names, jax_mesh.devices)

    @classmethod
    def from_device(cls, device: str | jax.Device) -> Mesh:
        """Returns the mesh of one device, such as `"cpu:0"`; it has no dimensions.

        Raises:
            DeviceError: There is no such device.
        """
        return cls([], np.array(parse_devices([device])[0], dtype=object))

    # Dimensions.

    def shape(self) -> tuple[int, ...]:
        """Returns the size of each dimension."""
        return self.jax_mesh.devices.shape

    @property
    def size(self) -> int:
        """Number of devices."""
        return self.jax_mesh.devices.size

    @property
    def strides(self) -> tuple[int, ...]:
        """How far apart neighbours along each dimension are in the list of devices."""
        shape = self.shape()
        return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))

    def dim_size(self, name: str) -> int:
        """Returns the size of a dimension.

        Raises:
            MeshError: The mesh has no such dimension.
        """
        if name not in self.dim_names:
            raise MeshError(f"The mesh has no dimension {name!r}; its dimensions are {self._dims()}.")
        return self.shape()[self.dim_names.index(name)]

    def contains_dim(self, name: str) -> bool:
        """Returns whether the mesh has a dimension of that name; also spelled `name in mesh`."""
        return name in self.dim_names

    def __contains__(self, name: object) -> bool:
        return name in self.dim_names

    def __getitem__(self, name: str) -> MeshDimension:
        return MeshDimension(name, self.dim_size(name))

    def _dims(self) -> str:
        return ", ".join(f"{name}={size}" for name, size in zip(self.dim_names, self.shape(), strict=True))

    # Devices.

    def device_type(self) -> str:
        """Returns the platform of the devices: `"cpu"`, `"gpu"` or `"tpu"`."""
        return self.jax_mesh.devices.flat[0].platform

    def global_devices(self) -> list[jax.Device]:
        """Returns all devices, in row-major order."""
        return list(self.jax_mesh.devices.flat)

    def local_devices(self) -> list[jax.Device]:
        """Returns the devices that belong to this process, in the mesh's order."""
        mine = jax.process_index()
        return [device for device in self.global_devices() if device.process_index == mine]

    def num_local_devices(self) -> int:
        """Returns the number of devices that belong to this process."""
        return len(self.local_devices())

    def global_device_ids(self) -> np.ndarray:
        """Returns the devices' positions 0, 1, ... in the mesh, as an array of the mesh's shape."""
        return np.arange(self.size).reshape(self.shape())

    def local_device_ids(self) -> list[int]:
        """Returns the positions in the mesh of this process's devices."""
        mine = jax.process_index()
        return [i for i, device in enumerate(self.global_devices()) if device.process_index == mine]

    def min_global_device_id(self) -> int:
        """Returns the position of this process's first device.

        Raises:
            MeshError: This process has no device in the mesh.
        """
        ids = self.local_device_ids()
        if not ids:
            raise MeshError(f"Process {jax.process_index()} has no device in {self!r}.")
        return ids[0]

    def is_remote(self) -> bool:
        """Returns whether no device of the mesh belongs to this process."""
        return not self.local_device_ids()

    def is_single_device(self) -> bool:
        """Returns whether the mesh has one device only."""
        return self.size == 1

    @property
    def single_device(self) -> jax.Device:
        """The only device.

        Raises:
            MeshError: There are several.
        """
        if not self.is_single_device():
            raise MeshError(f"{self!r} has {self.size} devices, not one.")
        return self.global_devices()[0]

    @called_as("tf.experimental.dtensor.Mesh.coords")
    def coords(self, device_id: int) -> tuple[int, ...]:
        """Returns the coordinates of the device at a position in the mesh.

        Raises:
            MeshError: There is no such position.
        """
        if not is_int(device_id):
            raise MeshError(f"A position in a mesh is an int, got {device_id!r}.")
        if not 0 <= device_id < self.size:
            raise MeshError(f"The mesh has devices 0 to {self.size - 1}, got {device_id}.")
        return tuple(int(i) for i in np.unravel_index(device_id, self.shape()))

    def device_location(self, device_id: int) -> dict[str, int]:
        """Returns the coordinates of the device at a position in the mesh, by dimension.

        Raises:
            MeshError: There is no such position.
        """
        return dict(zip(self.dim_names, self.coords(device_id), strict=True))

    def local_device_locations(self) -> list[dict[str, int]]:
        """Returns the coordinates of this process's devices, by dimension."""
        return [self.device_location(i) for i in self.local_device_ids()]

    def unravel_index(self) -> list[dict[str, int]]:
        """Returns the coordinates of all devices, by dimension."""
        return [self.device_location(i) for i in range(self.size)]

    def host_mesh(self) -> Mesh:
        """Returns the mesh of the same shape over CPU devices; this one if it is on CPUs already.

        Raises:
            DeviceError: A process has fewer CPU devices than it has devices in this mesh.
        """
        if self.device_type() == "cpu":
            return self
        hosts = {process: iter(_cpus_of(process)) for process in {d.process_index for d in self.global_devices()}}
        found = [next(hosts[device.process_index], None) for device in self.global_devices()]
        if None in found:
            raise DeviceError(
                f"A host mesh of {self!r} needs a CPU device for each of its devices. Make more of them at the top of "
                f"the program: rx.config.set_virtual_devices({self.num_local_devices()})."
            )
        return Mesh(self.dim_names, np.array(found).reshape(self.shape()), self.name)

    # Comparing and writing down.

    def __eq__(self, other: object) -> bool:
        return self._key == other._key if isinstance(other, Mesh) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key)

    def to_string(self) -> str:
        """Returns a text from which `from_string` makes an equal mesh.

        It reads `name|x=2,y=3|positions|this process's positions|devices`, as TensorFlow writes meshes; a device is
        its platform and its global id in JAX, such as `cpu:3`.
        """
        ids = ",".join(map(str, range(self.size)))
        local = ",".join(map(str, self.local_device_ids()))
        devices = ",".join(f"{device.platform}:{device.id}" for device in self.global_devices())
        dims = self._dims().replace(" ", "")
        return f"{self.name}|{dims}|{ids}|{local}|{devices}"

    @classmethod
    @called_as("tf.experimental.dtensor.Mesh.from_string")
    def from_string(cls, text: str) -> Mesh:
        """Returns the mesh that `to_string` wrote.

        Raises:
            MeshError: `text` is not of that form.
            DeviceError: A device does not exist here.
        """
        fields = text.split("|") if isinstance(text, str) else []
        if len(fields) != 5:
            raise MeshError(f"A mesh is written 'name|x=2,y=3|ids|local ids|devices', got {text!r:.200}.")
        name, dims, _, _, devices = fields
        try:
            pairs = [(dim, int(size)) for dim, size in (field.split("=") for field in filter(None, dims.split(",")))]
        except ValueError:
            raise MeshError(f"Mesh dimensions are written 'x=2,y=3', got {dims!r} in {text!r:.200}.") from None
        found = [_device_of_id(device) for device in devices.split(",")]
        shape = [size for _, size in pairs]
        if min(shape, default=1) < 1 or math.prod(shape) != len(found):
            raise MeshError(
                f"A mesh of {dims!r} needs {math.prod(shape)} devices, but {text!r:.200} names {len(found)}."
            )
        return cls([dim for dim, _ in pairs], np.array(found).reshape(shape), name)

    def __reduce__(self) -> tuple[Callable[[str], Mesh], tuple[str]]:
        return Mesh.from_string, (self.to_string(),)

    def _repr_html_(self) -> str:
        devices = self.jax_mesh.devices
        if devices.ndim == 0 or devices.size > _MOST_DEVICES_SHOWN:
            return Shown(repr(self)).html
        columns = self.dim_names[-1]
        headings = [*self.dim_names[:-1], *(f"{columns}={i}" for i in range(devices.shape[-1]))]
        rows = [[*map(str, place), *map(device_name, devices[place])] for place in np.ndindex(devices.shape[:-1])]
        return html_table(headings, rows, caption=repr(self))

    def __repr__(self) -> str:
        facts = [repr(self.name) if self.name else "", self._dims(), self.device_type()]
        return f"Mesh({', '.join(filter(None, facts))})"


def _device_of_id(text: str) -> jax.Device:
    platform, _, device_id = text.partition(":")
    try:
        found = [device for device in jax.devices(platform) if str(device.id) == device_id]
    except RuntimeError:
        found = []
    if not found:
        raise DeviceError(f"The mesh's device {text!r} does not exist here; JAX has found {jax.devices()}.")
    return found[0]


def _cpus_of(process: int) -> list[jax.Device]:
    return [device for device in jax.devices("cpu") if device.process_index == process]


# Checks of what a mesh is made of: names of dimensions, a label, an array of devices.


_RESERVED = ("unsharded", "match")
_DIM_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


def checked_names(dim_names: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of a mesh's dimensions as a tuple; a single string is one name."""
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
    """Returns a mesh's label."""
    if not isinstance(name, str) or "|" in name:  # It separates the fields of a mesh's text.
        raise MeshError(f"A mesh's name is a string without '|', got {name!r}.")
    return name


def check_devices(grid: np.ndarray, dim_names: tuple[str, ...]) -> None:
    """Checks that an array can be the devices of a mesh with these dimensions."""
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
