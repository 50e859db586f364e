"""Making meshes from sizes and devices: those of this process, or of all clients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from replicax.checks import is_int
from replicax.contracts.called_as import called_as
from replicax.dtensor.clients import check_connected, global_devices, local_devices, preferred_device_type
from replicax.dtensor.mesh import Mesh
from replicax.errors import DeviceError, MeshError
from replicax.runtime.devices import parse_devices

MeshDims = Sequence[tuple[str, int]] | Mapping[str, int]


@called_as("tf.experimental.dtensor.create_mesh")
def create_mesh(
    mesh_dims: MeshDims | None = None,
    mesh_name: str = "",
    devices: Sequence[str | jax.Device] | None = None,
    device_type: str | None = None,
) -> Mesh:
    """Makes a mesh of this process's devices.

    Args:
        mesh_dims: Pairs of a name and a size, or a dict of them. One size may be -1: the number of
            devices then determines it. By default one dimension `"x"` over all devices.
        mesh_name: A label.
        devices: The devices, or their names, such as `"cpu:0"`; by default all of `device_type`.
        device_type: `"cpu"`, `"gpu"` or `"tpu"`; by default that of `devices`, or the machine's best.

    Raises:
        MeshError: The sizes do not multiply to the number of devices, or a dimension is not well-formed.
        DeviceError: A device does not exist, or is not of `device_type`.

    Example:
        >>> mesh = create_mesh([("batch", 4), ("model", 2)])
        >>> mesh.dim_size("batch"), mesh.coords(5)
        (4, (2, 1))
    """
    found = parse_devices(devices) if devices is not None else _devices_of_type(device_type)
    wrong = [device for device in found if device_type is not None and device.platform != device_type.lower()]
    if wrong:
        raise DeviceError(f"The devices must be of type {device_type!r}, but {wrong} are not.")
    dims = _pairs(mesh_dims)
    return Mesh(list(dims), np.array(found).reshape(_sizes(dims, len(found))), mesh_name)


@called_as("tf.experimental.dtensor.create_distributed_mesh")
def create_distributed_mesh(
    mesh_dims: MeshDims,
    mesh_name: str = "",
    local_devices: Sequence[str | jax.Device] | None = None,
    device_type: str | None = None,
) -> Mesh:
    """Makes a mesh of the devices of all clients.

    In row-major order of the dimensions come first the devices of client 0, then those of client 1, and so on. With one
    client it is `create_mesh`.

    Args:
        mesh_dims: Pairs of a name and a size, or a dict of them; see `create_mesh`.
        mesh_name: A label.
        local_devices: Which devices each client contributes, such as `["cpu:0", "cpu:1"]`; by default all of
            `device_type`. Every client must name the same ones.
        device_type: `"cpu"`, `"gpu"` or `"tpu"`; by default that of `local_devices`, or the best there is.

    Raises:
        ContextError: `DTENSOR_JOBS` names several clients, and they are not connected yet.
        MeshError: The sizes do not multiply to the number of devices, or a dimension is not well-formed.
        DeviceError: A device does not exist, here or in another client, or is not of `device_type`.

    Example:
        >>> rx.dtensor.create_distributed_mesh([("batch", 8)]).size
        8
    """
    check_connected("create_distributed_mesh")
    if local_devices is None:
        devices = global_devices(preferred_device_type() if device_type is None else device_type)
        if not devices:
            raise DeviceError(f"No client has a device of type {device_type!r}; this one has {jax.local_devices()}.")
    else:
        devices = [peer for device in parse_devices(local_devices) for peer in _named_everywhere(device)]
    by_client = sorted(devices, key=lambda device: device.process_index)  # Stable: each client's keep their order.
    return create_mesh(mesh_dims, mesh_name, by_client, device_type)


# Sizes.


def _pairs(mesh_dims: MeshDims | None) -> dict[str, int]:
    """Returns the dimensions as a dict from names to sizes."""
    if mesh_dims is None:
        return {"x": -1}
    try:
        pairs = list(mesh_dims.items() if isinstance(mesh_dims, Mapping) else mesh_dims)
        dims = dict(pairs)
    except (TypeError, ValueError):
        raise MeshError(
            f"Mesh dimensions are pairs of a name and a size, such as [('batch', 4), ('model', 2)], got {mesh_dims!r}."
        ) from None
    if len(dims) < len(pairs):
        raise MeshError(f"The names of mesh dimensions must differ, got {[name for name, _ in pairs]}.")
    return dims


def _sizes(dims: Mapping[str, int], devices: int) -> tuple[int, ...]:
    """Returns the sizes of the dimensions; -1 is replaced by what the number of devices determines."""
    sizes = list(dims.values())
    bad = [size for size in sizes if not is_int(size) or (size < 1 and size != -1)]
    if bad or sizes.count(-1) > 1:
        raise MeshError(f"Sizes of mesh dimensions are positive ints, one of them may be -1, got {dict(dims)}.")
    if -1 in sizes:
        sizes[sizes.index(-1)] = max(1, devices // math.prod(size for size in sizes if size != -1))
    if math.prod(sizes) != devices:
        raise MeshError(
            f"A mesh of {dict(dims)} needs {abs(math.prod(dims.values()))} devices (or a multiple, with -1), and there "
            f"are {devices}. Choose other sizes, name the devices, or make virtual ones: "
            "rx.config.set_virtual_devices(n)."
        )
    return tuple(sizes)


# Devices.


def _devices_of_type(device_type: str | None) -> list[jax.Device]:
    if device_type is None:
        return jax.local_devices()
    try:
        return jax.local_devices(backend=device_type.lower())
    except (AttributeError, RuntimeError):
        raise DeviceError(
            f"There are no devices of type {device_type!r} here; JAX has found {jax.local_devices()}."
        ) from None


def _named_everywhere(device: jax.Device) -> list[jax.Device]:
    """Returns the devices at the same position in each client."""
    mine = local_devices(device.platform)
    if device not in mine:
        raise DeviceError(f"`local_devices` are this client's own, but {device} is not. This client has: {mine}.")
    position = mine.index(device)
    found = []
    for client in range(jax.process_count()):
        theirs = local_devices(device.platform, client)
        if position >= len(theirs):
            raise DeviceError(f"Client {client} has no device {device.platform}:{position}, only {theirs}.")
        found.append(theirs[position])
    return found
