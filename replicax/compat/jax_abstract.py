"""Arrays without values: a process in which JAX computes shapes only, on devices that need not exist.

`install` changes what JAX does at once, outside of functions that it traces. Small results of known values are computed
as ever (seeds, counters, learning rates: Python may look at them); all others are an `AbstractArray`, which has a
shape, a dtype and a sharding. Functions under `jax.jit` are traced, and neither compiled nor run. It is for a process
of its own (`planning/child.py`): nothing takes it back.

Without one of the names here, `install` raises: there is no public way to say to JAX that nothing shall be computed.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax._src.array as jax_array
import jax._src.pjit as jax_pjit
import numpy as np
from jax._src import core as jax_core, dispatch as jax_dispatch, dtypes as jax_dtypes
from jax._src.interpreters import mlir as jax_mlir
from jax._src.random.prng import PRNGKeyArray
from jax.experimental.layout import Format
from jax.sharding import NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

import replicax.compat.jax as jax_door
from replicax.compat.jax_names import PLACED

#: Results of so many bytes are computed, if all operands are known.
_SMALL = 2**20


class AbstractArray(jax.Array):
    """An array of which there is no more than its shape, dtype and sharding, and if it is small perhaps its value."""

    def __init__(self, aval: jax.core.ShapedArray, sharding: Sharding, committed: bool, known: np.ndarray | None):
        self._aval, self._place, self._committed, self.known = aval, sharding, committed, known

    @property
    def aval(self) -> Any:
        """Its type."""
        return self._aval

    @property
    def sharding(self) -> Any:
        """Where it would be."""
        return self._place

    @property
    def _value(self) -> np.ndarray:
        """The known value for a reader, else zeros that take no memory."""
        if self.known is not None:
            return self.known
        return np.broadcast_to(np.zeros((), self.aval.dtype), self.aval.shape)

    def __array__(self, dtype: Any = None, context: object = None, copy: bool | None = None) -> np.ndarray:
        """The array for NumPy, also where it asks for a copy: nobody writes to it, and a copy would take memory."""
        del context, copy
        if self.known is not None:
            return self.known if dtype is None else self.known.astype(dtype)
        return np.broadcast_to(np.zeros((), self.dtype if dtype is None else dtype), self.shape)

    def is_deleted(self) -> bool:
        """Returns whether its buffer was given away: there is none."""
        return False

    def delete(self) -> None:
        """Does nothing: there is no buffer."""

    def block_until_ready(self) -> AbstractArray:
        """Returns it: nothing is computed."""
        return self

    def copy_to_host_async(self) -> None:
        """Does nothing."""

    def addressable_data(self, index: int) -> AbstractArray:
        """Returns the shard of a device."""
        shape = self.sharding.shard_shape(self.shape)
        devices = list(self.sharding._device_assignment)
        known = self.known if shape == self.shape else None
        return _made(self.aval.update(shape=shape), SingleDeviceSharding(devices[index]), True, known)

    @property
    def addressable_shards(self) -> list[Any]:
        """The shards, one for each device."""
        devices = self.sharding._device_assignment
        return [
            jax_array.Shard(device, self.sharding, self.shape, self.addressable_data(i))
            for i, device in enumerate(devices)
        ]

    global_shards = addressable_shards

    @property
    def format(self) -> Any:
        """The layout in memory, which the compiler chooses."""
        return Format(None, self.sharding)

    def on_device_size_in_bytes(self) -> int:
        """Returns the bytes on all devices together."""
        return math.prod(self.sharding.shard_shape(self.shape)) * self.dtype.itemsize * self.sharding.num_devices

    def unsafe_buffer_pointer(self) -> int:
        """Raises: there is no buffer."""
        raise NotImplementedError("An array that is only planned has no memory.")

    def __iter__(self) -> Iterator[Any]:
        if self.ndim == 0:
            raise TypeError("iteration over a 0-d array")
        return (self[i] for i in range(self.shape[0]))

    def __repr__(self) -> str:
        return f"AbstractArray({self.aval.str_short()}, {self.sharding})"

    __str__ = __repr__


_OWN = {*vars(AbstractArray), "aval", "sharding", "_sharding", "_arrays"}


def _borrow() -> None:
    """Gives abstract arrays the methods of JAX's that use only what both have."""
    for name, value in {**vars(jax.Array), **vars(jax_array.ArrayImpl)}.items():
        made_by = value.fget if isinstance(value, property) else value
        if name not in _OWN and (inspect.isfunction(made_by) or hasattr(made_by, "__wrapped__")):
            setattr(AbstractArray, name, value)
    AbstractArray.__hash__ = None  # type: ignore[assignment]
    setattr(AbstractArray, "__abstractmethods__", frozenset())  # noqa: B010  # `jax.Array` promises more than is needed


def _made(aval: Any, sharding: Sharding, committed: bool, known: np.ndarray | None = None) -> AbstractArray:
    return AbstractArray(aval.update(sharding=None), sharding, committed, known)


def is_abstract(value: object) -> bool:
    """Returns whether a value is an array without a buffer, or random keys made of one."""
    return isinstance(value, AbstractArray) or (
        isinstance(value, PRNGKeyArray) and isinstance(value._base_array, AbstractArray)
    )


def install(devices: Sequence[jax.Device] | None, platform: str) -> None:
    """Has this process compute shapes only from now on."""
    # `jax.devices()` returns `devices` then (None: this process's own). They are found under the name of `platform`,
    # too: "gpu" for virtual ones that play GPUs.
    own = jax.local_devices(backend="cpu")
    home = SingleDeviceSharding(own[0])
    found = tuple(own if devices is None else devices)
    _borrow()
    jax_core.pytype_aval_mappings[AbstractArray] = jax_core.pytype_aval_mappings[jax_array.ArrayImpl]
    jax_dtypes.register_canonicalize_value_handler(AbstractArray, None)
    jax_mlir.register_constant_handler(AbstractArray, _constant)
    if hasattr(jax_core, "literalable_types") and jax_array.ArrayImpl in jax_core.literalable_types:
        jax_core.literalable_types.add(AbstractArray)
    _compute_shapes(home)
    _list_devices(found, own, platform)


def _constant(val: Any, aval: object) -> Any:
    """A captured array as a constant of a program: zeros, which take the memory that they would."""
    del aval
    return jax_mlir.ir_constant(val._value)


def _compute_shapes(home: Sharding) -> None:
    process = jax_core.EvalTrace.process_primitive
    call_jit = jax_pjit._pjit_call_impl_python

    def process_primitive(self: Any, primitive: Any, args: Sequence[Any], params: dict[str, Any], /) -> Any:
        is_bound = False
        if primitive is jax_pjit.jit_p:
            avals = params["jaxpr"].out_avals
            is_bound = _is_elsewhere(params, home) or _names_devices(params["jaxpr"].jaxpr)
        elif primitive is jax_dispatch.device_put_p:
            return _put(args, params["devices"], home)
        elif primitive.name == "stage":  # A number or an array of the host's; since JAX 0.12.
            return _put_one(args[0], None, home)
        else:
            try:
                avals, _ = primitive.abstract_eval(*map(jax_core.typeof, args), **params)
            except NotImplementedError:
                return process(self, primitive, args, params)
            avals = avals if primitive.multiple_results else [avals]
        concrete = None if is_bound else _concrete(args, avals)
        if concrete is not None:
            made = process(self, primitive, concrete, params)
            if not any(map(is_abstract, args)):
                return made
            results = [_as_known(each, args, home) for each in (made if primitive.multiple_results else [made])]
        else:
            shardings = params.get("out_shardings") or [None] * len(avals)
            results = [_result(aval, where, args, home) for aval, where in zip(avals, shardings, strict=True)]
        return results if primitive.multiple_results else results[0]

    def call(*args: Any, **params: Any) -> Any:
        avals = params["jaxpr"].out_avals
        if not any(map(is_abstract, args)) and _is_small(avals) and not _is_elsewhere(params, home):
            return call_jit(*args, **params)
        return process_primitive(jax_core.eval_trace, jax_pjit.jit_p, args, params), None, None, []

    def put(*args: Any, devices: Sequence[Any], srcs: Any, copy_semantics: Any, dst_avals: Any) -> list[Any]:
        del srcs, copy_semantics, dst_avals
        return _put(args, devices, home)

    jax_core.EvalTrace.process_primitive = process_primitive  # type: ignore[method-assign]
    jax_pjit._pjit_call_impl_python = call
    jax_dispatch._batched_device_put_impl = put

    def put_parts(aval: Any, sharding: Sharding, parts: Sequence[Any], *others: object) -> Any:
        del others
        is_whole = parts[0].shape == aval.shape
        return _put_one(parts[0], sharding, home) if is_whole else _made(aval, sharding, True)

    jax_door._put_parts = put_parts

    def from_callback(shape: Any, sharding: Any, data_callback: Any, dtype: Any = None) -> Any:
        if dtype is None:
            index = next(iter(sharding.devices_indices_map(tuple(shape)).values()))
            dtype = np.asarray(data_callback(index)).dtype
        return _made(jax.core.ShapedArray(tuple(shape), jax.dtypes.canonicalize_dtype(dtype)), sharding, True)

    def from_single(shape: Any, sharding: Sharding, arrays: Sequence[Any], *, dtype: Any = None) -> Any:
        kind = arrays[0].dtype if dtype is None else dtype
        return _result(jax.core.ShapedArray(tuple(shape), kind), sharding, (), home)

    def from_local(sharding: Sharding, local_data: np.ndarray, global_shape: Any = None) -> Any:
        shape = tuple(local_data.shape if global_shape is None else global_shape)
        return _made(jax.core.ShapedArray(shape, jax.dtypes.canonicalize_dtype(local_data.dtype)), sharding, True)

    jax.make_array_from_callback = jax_array.make_array_from_callback = (
        from_callback  # `jnp.zeros_like` takes the other
    )
    jax.make_array_from_single_device_arrays = from_single
    jax.make_array_from_process_local_data = from_local


def _is_small(avals: Sequence[Any]) -> bool:
    return sum(_bytes(aval) for aval in avals) <= _SMALL


def _bytes(aval: Any) -> int:
    if not isinstance(aval, jax.core.ShapedArray):
        return _SMALL + 1  # a reference, or an effect
    return math.prod(aval.shape) * int(getattr(aval.dtype, "itemsize", 8))


def _is_elsewhere(params: dict[str, Any], home: Sharding) -> bool:
    """Returns whether a program runs on other devices than the host's first."""
    places = (*params.get("in_shardings", ()), *params.get("out_shardings", ()))
    return any(isinstance(where, Sharding) and where.device_set != home.device_set for where in places)


def _names_devices(program: Any) -> bool:
    """Returns whether an operation of a program is for certain devices."""
    return any(
        each.primitive.name in PLACED or any(map(_names_devices, jax_core.jaxprs_in_params(each.params)))
        for each in program.eqns
    )


def _concrete(args: Sequence[Any], avals: Sequence[Any]) -> list[Any] | None:
    """Returns the operands with their values, if all are known and the results are small; else None."""
    if not _is_small(avals):
        return None
    found = []
    for each in args:
        if isinstance(each, PRNGKeyArray) and isinstance(each._base_array, AbstractArray):
            if each._base_array.known is None:
                return None
            each = PRNGKeyArray(each._impl, each._base_array.known)
        elif isinstance(each, AbstractArray):
            if each.known is None:
                return None
            each = each.known
        found.append(each)
    return found


def _base(value: Any) -> Any:
    return value._base_array if isinstance(value, PRNGKeyArray) else value


def _place_of(shape: Sequence[int], args: Sequence[Any], home: Sharding) -> tuple[Sharding, bool]:
    """Returns where the result of an operation is: where its operands are."""
    committed = [_base(each) for each in args if is_abstract(each) and _base(each)._committed]
    if not committed:
        return home, False
    alike = next((each for each in committed if each.shape == tuple(shape)), None)
    if alike is not None:
        return alike.sharding, True
    first = committed[0].sharding
    return (NamedSharding(first.mesh, PartitionSpec()) if isinstance(first, NamedSharding) else first), True


def _result(aval: Any, where: Any, args: Sequence[Any], home: Sharding) -> Any:
    if not isinstance(aval, jax.core.ShapedArray):
        return aval
    is_key = jax.numpy.issubdtype(aval.dtype, jax.dtypes.prng_key)
    impl: Any = aval.dtype._impl if is_key else None
    plain = aval.update(shape=(*aval.shape, *impl.key_shape), dtype=np.dtype("uint32")) if is_key else aval
    place, committed = (where, True) if isinstance(where, Sharding) else _place_of(plain.shape, args, home)
    if is_key and isinstance(where, NamedSharding):
        place = NamedSharding(where.mesh, PartitionSpec(*where.spec, *[None] * (len(plain.shape) - len(where.spec))))
    made = _made(plain, place, committed)
    return PRNGKeyArray(impl, made) if is_key else made


def _as_known(value: Any, args: Sequence[Any], home: Sharding) -> Any:
    if not isinstance(value, jax.Array):
        return value
    base = _base(value)
    place, committed = _place_of(base.shape, args, home)
    made = _made(base.aval, place, committed, np.asarray(base))
    return PRNGKeyArray(value._impl, made) if isinstance(value, PRNGKeyArray) else made


def _put(args: Sequence[Any], devices: Sequence[Any], home: Sharding) -> list[Any]:
    return [_put_one(value, where, home) for value, where in zip(args, devices, strict=True)]


def _put_one(value: Any, where: Any, home: Sharding) -> Any:
    if where is None and isinstance(value, jax.Array):
        return value
    where = getattr(where, "sharding", where)
    if isinstance(value, PRNGKeyArray):
        base = _put_one(value._base_array, where if where is None else _of_data(where, value), home)
        return PRNGKeyArray(value._impl, base)
    aval = jax_core.typeof(value)
    is_known = _bytes(aval) <= _SMALL
    known = value.known if isinstance(value, AbstractArray) else np.asarray(value) if is_known else None
    place = home if where is None else where if isinstance(where, Sharding) else SingleDeviceSharding(where)
    return _made(aval, place, where is not None, known)


def _of_data(where: Any, keys: PRNGKeyArray) -> Any:
    """Returns where the data of random keys are: their last dimension is not sharded."""
    if not isinstance(where, NamedSharding):
        return where
    spec = [*where.spec, *[None] * (keys.ndim - len(where.spec))]
    return NamedSharding(where.mesh, PartitionSpec(*spec, None))


def _list_devices(found: Sequence[jax.Device], own: Sequence[jax.Device], platform: str) -> None:
    """Makes `found` the devices that JAX has."""
    names = {None, platform, found[0].platform, *(["cuda"] if platform == "gpu" else [])}

    def devices(backend: str | None = None) -> list[jax.Device]:
        if backend in names:
            return list(found)
        if backend == "cpu":
            return list(own)
        raise RuntimeError(f"Unknown backend {backend}: the plan is for {platform}.")

    def local_devices(
        process_index: int | None = None, backend: str | None = None, host_id: int | None = None
    ) -> list[jax.Device]:
        del process_index, host_id
        return devices(backend)

    counts: dict[str, Callable[..., object]] = {
        "devices": devices,
        "local_devices": local_devices,
        "device_count": lambda backend=None: len(devices(backend)),
        "local_device_count": lambda backend=None: len(devices(backend)),
        "default_backend": lambda: found[0].platform,
    }
    for name, function in counts.items():
        original = getattr(jax, name)
        setattr(jax, name, functools.wraps(original)(function))


__all__ = ["AbstractArray", "install", "is_abstract"]
