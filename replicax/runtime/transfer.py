"""Putting values on devices, of one process or of several that run the same program.

If a mesh spans processes, each of them puts the shards of its own devices there. Callers must pass the same value in
every process, or take the chief's (`from_chief`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from replicax.compat.jax import array_of_parts, is_random_key, strongly_typed
from replicax.compat.jax_tracing import outside_traces
from replicax.errors import ArgumentError

#: Values that can be put on devices: an array of JAX or NumPy, or a number.
HostOrDeviceArray: TypeAlias = jax.typing.ArrayLike
_Values = TypeVar("_Values")

_SMALL_BYTES = 1 << 16

#: JAX's name of the memory of the host from which a device can copy by itself.
HOST_MEMORY = "pinned_host"


def spans_processes(sharding: Sharding) -> bool:
    """Returns whether some device of `sharding` belongs to another process."""
    return not sharding.is_fully_addressable


def put(value: HostOrDeviceArray, sharding: Sharding) -> jax.Array:
    """Returns `value` with a sharding; it may share buffers with `value`."""
    if _stays_here(value, sharding):
        return jax.device_put(value, sharding)
    if isinstance(value, jax.Array) and value.sharding == sharding:
        return value
    if isinstance(value, jax.Array) and not value.is_fully_addressable and not value.is_fully_replicated:
        return jax.jit(_same, out_shardings=sharding)(value)
    if is_random_key(value):
        data = put(jax.random.key_data(local(value)), sharding)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(value))
    host = np.asarray(local(value))
    dtype = jax.dtypes.canonicalize_dtype(host.dtype)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index].astype(dtype), dtype=dtype)


def put_all(values: Sequence[HostOrDeviceArray], shardings: Sequence[Sharding]) -> list[jax.Array]:
    """Puts many values on devices. Those that need no other process go to JAX together, which is twice as fast."""
    # Values that are whole on each device and on the host take a tenth: metrics, reset at the start of each epoch.
    placed = {i: _on_all(*pair) for i, pair in enumerate(zip(values, shardings, strict=True)) if _goes_to_all(*pair)}
    here = [i for i, pair in enumerate(zip(values, shardings, strict=True)) if i not in placed and _stays_here(*pair)]
    if here:
        placed |= zip(here, jax.device_put([values[i] for i in here], [shardings[i] for i in here]), strict=True)
    return [placed[i] if i in placed else put(value, shardings[i]) for i, value in enumerate(values)]


def _goes_to_all(value: HostOrDeviceArray, sharding: Sharding) -> bool:
    """Returns whether a value is an array of numbers of the host that becomes one on all devices of a mesh as it is."""
    if not (isinstance(value, np.ndarray) and value.dtype.kind in "biufc" and isinstance(sharding, NamedSharding)):
        return False
    is_everywhere = sharding.is_fully_replicated and not spans_processes(sharding)
    return is_everywhere and sharding.memory_kind != HOST_MEMORY and _is_of_devices(value.dtype)


def _is_of_devices(dtype: np.dtype) -> bool:
    """Returns whether devices use a dtype as it is. jaxlib would take bytes in another order for those of numbers."""
    return dtype.isnative and jax.dtypes.canonicalize_dtype(dtype) == dtype


def _on_all(value: HostOrDeviceArray, sharding: Sharding) -> jax.Array:
    assert isinstance(value, np.ndarray)
    assert isinstance(sharding, NamedSharding)
    devices = list(sharding.mesh.devices.flat)
    return array_of_parts(jax.core.ShapedArray(value.shape, value.dtype), sharding, devices, [value] * len(devices))


def _stays_here(value: HostOrDeviceArray, sharding: Sharding) -> bool:
    return not spans_processes(sharding) and (not isinstance(value, jax.Array) or value.is_fully_addressable)


def beside_device(sharding: Sharding | None) -> Sharding | None:
    """Returns the sharding on the devices of what lives in the host's memory beside them; None for anything else."""
    is_beside = sharding is not None and sharding.memory_kind == HOST_MEMORY
    return sharding.with_memory_kind("device") if sharding is not None and is_beside else None


def is_deleted(value: Any) -> bool:
    """Returns whether the memory of a value was given to a program, or freed."""
    return hasattr(value, "is_deleted") and not isinstance(value, jax.core.Tracer) and bool(value.is_deleted())


def check_not_deleted(values: Iterable[Any], what: str) -> None:
    """Refuses arrays whose memory was given away: over several devices, JAX's compiled calls end the process at one."""
    for value in values:
        if is_deleted(value):
            raise ArgumentError(
                f"{what} is an array of shape {value.shape} whose memory has been given away: it was an argument of "
                "`donate_argnums`, or deleted. Use what the step returned in its place."
            )


def copy_of(array: jax.Array) -> jax.Array:
    """Returns a copy of an array, where it is; it may be donated."""
    check_not_deleted([array], "What is copied")
    if array.sharding.memory_kind != HOST_MEMORY:
        return jnp.copy(array)
    # The devices do not compute in the memory of the host.
    parts = [
        jax.device_put(np.array(shard.data), SingleDeviceSharding(shard.device, memory_kind=HOST_MEMORY))
        for shard in array.addressable_shards
    ]
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, parts)


def placed_copy(value: HostOrDeviceArray, sharding: Sharding) -> jax.Array:
    """Returns a copy of `value` with a sharding; it shares no buffer with `value`."""
    (copy,) = placed_copies([value], [sharding])
    return copy


def placed_copies(values: Sequence[HostOrDeviceArray], shardings: Sequence[Sharding]) -> list[jax.Array]:
    """Returns copies of `values` with shardings; they share no buffers with `values`, and may be donated."""
    copies = [_copy_in_parts(*pair) for pair in zip(values, shardings, strict=True)]
    others = [i for i, copy in enumerate(copies) if copy is None]
    placed = put_all([_copied(values[i], shardings[i]) for i in others], [shardings[i] for i in others])
    made = dict(zip(others, placed, strict=True))
    return [made[i] if copy is None else copy for i, copy in enumerate(copies)]


def _copy_in_parts(value: HostOrDeviceArray, sharding: Sharding) -> jax.Array | None:
    """Returns a copy of an array, made for each device of what it shall have; None if the array does not lie so."""
    # Nothing is held twice on the way, and nothing is compiled: a deep model has many small variables.
    if not isinstance(value, (jax.Array, np.ndarray)) or is_random_key(value) or sharding.memory_kind == HOST_MEMORY:
        return None
    check_not_deleted([value], "What is copied")
    places = sharding.addressable_devices_indices_map(value.shape)
    if isinstance(value, jax.Array):
        if _is_large_beside(value, sharding):
            is_whole = sharding.is_fully_replicated and value.sharding.memory_kind != HOST_MEMORY
            return _copy_of_parts(value, sharding, [value] * len(places)) if is_whole else None
        if not _is_in_host_memory(value):
            return None
        value = np.asarray(value)  # It takes half the time. An array that NumPy sees can no longer be donated, though.
    if not _is_of_devices(value.dtype):
        return None
    parts = [_dense(value[index] if index else value) for index in places.values()]
    return _copy_of_parts(value, sharding, parts if sharding.is_fully_replicated else _apart(parts))


def _is_large_beside(value: jax.Array, sharding: Sharding) -> bool:
    """Returns whether an array of one device is large, and lives in the world of `sharding`, not in an earlier one."""
    devices = value.sharding.device_set
    clients: set[Any] = {getattr(device, "client", None) for device in devices | sharding.addressable_devices}
    return len(devices) == 1 and value.nbytes > _SMALL_BYTES and len(clients) == 1


def _dense(array: np.ndarray) -> np.ndarray:
    """Returns an array as jaxlib can copy it: row by row, and no strides of zero."""
    return array.reshape(-1).reshape(array.shape)


def _apart(parts: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Returns arrays that begin at different addresses: jaxlib cannot copy from one twice, unless all are the same."""
    seen: set[int] = set()
    apart = []
    for part in parts:
        apart.append(part.copy() if part.ctypes.data in seen else part)
        seen.add(part.ctypes.data)
    return apart


def _copy_of_parts(
    like: jax.Array | np.ndarray, sharding: Sharding, parts: Sequence[jax.Array | np.ndarray]
) -> jax.Array:
    """Returns an array of copies of what each device of this process shall have."""
    devices = list(sharding.addressable_devices_indices_map(like.shape))
    return array_of_parts(jax.core.ShapedArray(like.shape, like.dtype), sharding, devices, parts, copies=True)


def _copied(value: HostOrDeviceArray, sharding: Sharding) -> jax.Array | np.ndarray:
    if isinstance(value, np.ndarray):
        return np.array(value)
    if not isinstance(value, jax.Array):
        return strongly_typed(value)
    if len(value.sharding.device_set) == 1 and sharding.shard_shape(value.shape) != value.shape:
        return value  # Its device would hold it twice; parts of it are copies.
    return copy_of(value)


def _is_in_host_memory(value: jax.Array) -> bool:
    """Returns whether an array lives on one device, which is the host itself."""
    devices: list[jax.Device] = list(value.sharding.device_set)
    return len(devices) == 1 and devices[0].platform == "cpu"


def local(value: HostOrDeviceArray) -> HostOrDeviceArray:
    """Returns this process's copy of a value that every process holds."""
    if isinstance(value, jax.Array) and not value.is_fully_addressable:
        return value.addressable_data(0)
    return value


def host_copy(value: jax.Array | np.ndarray) -> np.ndarray:
    """Returns a value that every process holds in full as an array on the host; of random keys their data."""
    own = local(value)
    return np.asarray(jax.random.key_data(own) if is_random_key(own) else own)


def with_kind_of(array: jax.typing.ArrayLike, host: np.ndarray) -> jax.Array | np.ndarray:
    """Returns what `host_copy` has made of an array like `array`; of a random key's data a key of that kind."""
    return (
        jax.random.wrap_key_data(jnp.asarray(host), impl=jax.random.key_impl(array)) if is_random_key(array) else host
    )


def from_chief(values: Sequence[HostOrDeviceArray]) -> list[HostOrDeviceArray]:
    """Returns process 0's `values` in all processes, which call this together with equal shapes and dtypes."""
    plain: Sequence[HostOrDeviceArray] = [
        jax.random.key_data(local(value)) if is_random_key(value) else np.asarray(local(value)) for value in values
    ]
    if jax.process_count() > 1 and plain:
        plain = _sent(_firsts, [np.asarray(value) for value in plain])
    return [
        jax.random.wrap_key_data(jnp.asarray(sent), impl=jax.random.key_impl(value)) if is_random_key(value) else sent
        for value, sent in zip(values, plain, strict=True)
    ]


def from_all(values: Sequence[HostOrDeviceArray]) -> list[np.ndarray]:
    """Returns the `values` of all processes, stacked in their order; all processes must call this together."""
    return _sent(_same, [np.asarray(value) for value in values])


def _sent(choose: Callable[[list[jax.Array]], list[jax.Array]], values: list[np.ndarray]) -> list[np.ndarray]:
    """Returns in every process what `choose` makes of the `values` of all, each stacked in the processes' order."""
    firsts = {device.process_index: device for device in reversed(jax.devices())}
    mesh = Mesh([firsts[index] for index in sorted(firsts)], ("process",))
    stacked = NamedSharding(mesh, PartitionSpec("process"))
    # A step may be traced around it, which is why it is not one of `jax.experimental.multihost_utils`.
    with outside_traces():
        given = [
            jax.make_array_from_process_local_data(stacked, value[None], (mesh.size, *value.shape)) for value in values
        ]
        found = jax.jit(choose, out_shardings=NamedSharding(mesh, PartitionSpec()))(given)
        return [np.asarray(value.addressable_data(0)) for value in found]


def _firsts(values: list[jax.Array]) -> list[jax.Array]:
    return [value[0] for value in values]


def _same(values: _Values) -> _Values:
    return values
