"""DTensors: arrays over a mesh. Packing them from parts, taking them apart, changing and asking for their layout.

A DTensor *is* a `jax.Array`: its layout is its sharding, so every function of JAX takes it. What follows is the
vocabulary of TensorFlow's DTensor over that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from replicax import variable_access
from replicax.checkpoint.variable_names import is_variable
from replicax.data.batch_placement import owned_copy
from replicax.dtensor.arrays import as_array, checked_layout, constants_are_traced, is_traced, laid_out, layout_of
from replicax.dtensor.layout import MATCH, Layout
from replicax.errors import LayoutError, ProgramError, TensorError
from replicax.migration import called_as
from replicax.program.keras_state import owner_of


def pack(tensors: Sequence[Any], layout: Layout, *, check_replicas: bool = False) -> jax.Array:
    """Makes a DTensor from its parts.

    Args:
        tensors: A part for each device of the mesh that belongs to this process, in the mesh's order; all of one shape
            and dtype. Devices that hold the same part of the tensor must be given equal ones.
        layout: The layout of the tensor.
        check_replicas: Whether to check that they are equal also where they are on devices: those are otherwise
            believed, as in TensorFlow. Parts in host memory are always compared.

    Returns:
        The tensor, of shape `layout.global_shape(part.shape)`. It shares no memory with the parts.

    Raises:
        TensorError: The number of parts is another one, their shapes or dtypes differ, or equal parts are not.
        LayoutError: Their rank is not the layout's, or a dimension is `MATCH`.
        ProgramError: Called while a function is being traced.

    Example:
        >>> from replicax.dtensor import create_mesh
        >>> layout = Layout(["x"], create_mesh([("x", 2)], devices=["cpu:0", "cpu:1"]))
        >>> pack([np.zeros(3), np.ones(3)], layout)
        Array([0., 0., 0., 1., 1., 1.], dtype=float32)
    """
    layout = checked_layout(layout)
    if not isinstance(tensors, Sequence):
        raise TensorError(f"`tensors` is a list with a part for each device, got {type(tensors).__name__}.")
    parts = [as_array(tensor) for tensor in tensors]
    devices = layout.mesh.local_devices()
    _check_not_traced(parts, "pack")
    _check_parts(parts, len(devices), layout)
    _check_replicas(parts, layout, also_on_devices=check_replicas)
    shape, sharding = layout.global_shape(parts[0].shape), layout.to_sharding()
    if all(isinstance(part, np.ndarray) for part in parts):
        return _packed_from_host(parts, shape, sharding, devices)
    owned = [owned_copy(part) if isinstance(part, np.ndarray) else jax.numpy.copy(part) for part in parts]
    placed = jax.device_put(owned, devices)
    return jax.make_array_from_single_device_arrays(shape, sharding, placed)


def _packed_from_host(parts: list[Any], shape: tuple[int, ...], sharding: Any, devices: list[Any]) -> jax.Array:
    """Packs parts in host memory in one transfer, four times as fast as one for each device."""
    indices = sharding.addressable_devices_indices_map(shape)
    by_start = {_start(indices[device]): owned_copy(part) for device, part in zip(devices, parts, strict=True)}
    return jax.make_array_from_callback(shape, sharding, lambda index: by_start[_start(index)])


def _start(index: Any) -> tuple[int, ...]:
    """Returns where a part begins in the tensor; a slice itself is no key for a dict before Python 3.12."""
    return tuple(each.start or 0 for each in index)


def unpack(tensor: jax.Array) -> list[jax.Array]:
    """Returns copies of the parts of a DTensor that this process holds, each on its device, in the mesh's order.

    Raises:
        TensorError: `tensor` is not a DTensor; a variable's is its `value`.
        ProgramError: Called while a function is being traced.
    """
    _check_not_traced([tensor], "unpack")
    layout = _layout_of_dtensor(tensor, "unpack")
    shards = {shard.device: shard.data for shard in tensor.addressable_shards}
    parts = [shards[device] for device in layout.mesh.local_devices()]
    # jnp.copy is a program, and would be one for all devices of the default mesh.
    return [jax.device_put(part, part.sharding, may_alias=False) for part in parts]


@called_as("tf.experimental.dtensor.relayout")
def relayout(tensor: Any, layout: Layout) -> jax.Array:
    """Returns a tensor with another layout: the same numbers, differently placed.

    In a traced function it tells XLA how the value is to be cut there, whatever the dimensions' lengths; its gradient
    is a relayout too.

    Args:
        tensor: DTensor, plain array or numbers, on any mesh or none.
        layout: The layout; `MATCH` keeps a dimension as it is.

    Raises:
        LayoutError: The rank is another one, or, outside of traced functions, a dimension does not divide.
        TensorError: `tensor` is no array.
    """
    return laid_out(tensor, checked_layout(layout))


@called_as("tf.experimental.dtensor.relayout_like")
def relayout_like(tensor: Any, layout_tensor: Any) -> jax.Array:
    """Returns `tensor` with the layout of another one; see `relayout`.

    Raises:
        TensorError: `layout_tensor` is not a DTensor.
        ProgramError: `layout_tensor` is traced: its layout is XLA's to choose. (A `DVariable` has one everywhere.)
    """
    layout = fetch_layout(layout_tensor)
    if layout is None:
        raise TensorError(f"`layout_tensor` must be a DTensor or a DVariable, got {layout_tensor!r:.100}.")
    return relayout(tensor, layout)


@called_as("tf.experimental.dtensor.copy_to_mesh")
def copy_to_mesh(tensor: Any, layout: Layout) -> jax.Array:
    """Returns a tensor with a layout of any mesh, sharing no buffer with the original; otherwise `relayout`."""
    return laid_out(tensor, checked_layout(layout), copy=True)


def fetch_layout(tensor: Any) -> Layout | None:
    """Returns the layout of a DTensor, of a `DVariable`, or of another variable, also of Keras, that lives on a mesh.

    A variable of a strategy has one of the strategy's mesh, whose first dimension is `"replica"`. What is not an array
    at all has None.

    Raises:
        TensorError: `tensor` is an array or variable, but lives on no mesh, or has a component for each replica.
        ProgramError: It is a traced array.
    """
    layout = getattr(tensor, "layout", None)
    if isinstance(layout, Layout):
        return layout
    if is_variable(tensor):
        return _checked_present(_layout_of_variable(tensor), tensor, "fetch_layout")
    if not isinstance(tensor, (jax.Array, np.ndarray)):
        return None
    return _layout_of_dtensor(tensor, "fetch_layout")


def is_dtensor(tensor: Any) -> bool:
    """Returns whether `tensor` is an array over a mesh, or a variable that lives on one.

    Raises:
        ProgramError: It is traced.
    """
    if isinstance(getattr(tensor, "layout", None), Layout):
        return True
    if is_traced(tensor):
        raise _traced_error("is_dtensor")
    if is_variable(tensor):
        return _layout_of_variable(tensor) is not None
    return isinstance(tensor, jax.Array) and layout_of(tensor) is not None


def check_layout(tensor: Any, layout: Layout) -> None:
    """Checks that a tensor is placed as a layout says; `MATCH` allows any cut.

    Layouts that place every element on the same devices agree, such as `UNSHARDED` and a mesh dimension of size 1.

    Raises:
        LayoutError: It is placed differently.
        TensorError: `tensor` is not a DTensor.
    """
    present = fetch_layout(tensor)
    if present is None:
        raise TensorError(f"Expected a DTensor, got {type(tensor).__name__}: {tensor!r:.100}.")
    checked_layout(layout).check_rank(tensor.shape)
    wanted = Layout(
        [
            now if spec == MATCH else spec
            for spec, now in zip(layout.sharding_specs, present.sharding_specs, strict=True)
        ],
        layout.mesh,
    )
    if not present.to_sharding().is_equivalent_to(wanted.to_sharding(), layout.rank):
        raise LayoutError(f"The tensor has the layout {present!r}, expected {layout!r}. relayout changes it.")


def _layout_of_dtensor(tensor: Any, caller: str) -> Layout:
    if is_traced(tensor):
        raise _traced_error(caller)
    return _checked_present(layout_of(tensor) if isinstance(tensor, jax.Array) else None, tensor, caller)


def _layout_of_variable(variable: Any) -> Layout | None:
    if variable_access.is_per_replica_variable(variable):
        return None
    sharding: Any = variable_access.layout_of(variable)
    placement = getattr(owner_of(variable), "placement", None)
    if sharding is None and placement is not None:  # Its value comes there with the first program that reads it.
        sharding = placement.variable_sharding(variable)
    value = variable._value
    if sharding is None and isinstance(value, jax.Array):
        sharding = value.sharding
    return layout_of(jax.ShapeDtypeStruct(variable_access.shape_of(variable), variable._dtype, sharding=sharding))


def _checked_present(layout: Layout | None, tensor: Any, caller: str) -> Layout:
    if layout is None:
        raise TensorError(
            f"{caller} takes a DTensor (an array over a mesh), got {type(tensor).__name__}: {tensor!r:.100}. pack and "
            "relayout make one."
        )
    return layout


def _check_not_traced(tensors: Sequence[Any], caller: str) -> None:
    """Checks that none of `tensors` is traced, nor would be what is computed from them."""
    if any(map(is_traced, tensors)) or constants_are_traced():
        raise _traced_error(caller)


def _traced_error(caller: str) -> ProgramError:
    return ProgramError(
        f"{caller} was called while a function was being traced: there a value has no layout yet, XLA chooses it. "
        "Ask outside of the function, or fix the layout inside with relayout(value, layout)."
    )


def _check_parts(parts: list[Any], expected: int, layout: Layout) -> None:
    if len(parts) != expected:
        raise TensorError(
            f"pack needs a part for each of the {expected} devices of {layout.mesh!r} that belong to this process, got "
            f"{len(parts)}."
        )
    if not parts:
        raise TensorError(f"No device of {layout.mesh!r} belongs to this process: there is nothing to pack here.")
    layout.check_rank(parts[0].shape)
    shapes, dtypes = dict.fromkeys(part.shape for part in parts), dict.fromkeys(part.dtype for part in parts)
    if len(shapes) > 1 or len(dtypes) > 1:
        raise TensorError(
            "All parts of a tensor have one shape and dtype, got shapes "
            f"{[*shapes]} and dtypes {[str(dtype) for dtype in dtypes]}."
        )


def _check_replicas(parts: list[Any], layout: Layout, also_on_devices: bool) -> None:
    offsets = layout.offset_to_shard()
    first: dict[tuple[int, ...], int] = {}
    for i, position in enumerate(layout.mesh.local_device_ids()):
        j = first.setdefault(offsets[position], i)
        one, other = parts[j], parts[i]
        if one is other or not (also_on_devices or (isinstance(one, np.ndarray) and isinstance(other, np.ndarray))):
            continue
        if not _are_equal(np.asarray(one), np.asarray(other)):
            raise TensorError(
                f"By {layout!r} the parts {j} and {i} are the same part of the tensor, but they differ. Pass the same "
                "values for both, or a layout in which the tensor is cut between these devices."
            )


def _are_equal(one: np.ndarray, other: np.ndarray) -> bool:
    # NaN is looked for only where there are differences: that takes several times as long.
    has_nan = jax.numpy.issubdtype(one.dtype, jax.numpy.inexact)
    return np.array_equal(one, other) or (has_nan and np.array_equal(one, other, equal_nan=True))
