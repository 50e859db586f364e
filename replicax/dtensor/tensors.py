"""DTensors, which are arrays over a mesh: packing and unpacking them, changing their layout and asking for it.

A DTensor *is* a `jax.Array`: its layout is its sharding, so every function of JAX takes it. This module is the
vocabulary of TensorFlow's DTensor over that.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np

from replicax.checkpoint.variable_names import is_variable
from replicax.compat.jax_tracing import constants_are_traced
from replicax.contracts import variable_access
from replicax.contracts.called_as import called_as
from replicax.contracts.strategy import owner_of
from replicax.data.batch_placement import owned_copy
from replicax.dtensor.arrays import TensorLike, as_array, checked_layout, is_traced, laid_out, layout_of
from replicax.dtensor.layout import MATCH, Layout
from replicax.errors import LayoutError, ProgramError, TensorError


def pack(tensors: Sequence[TensorLike], layout: Layout, *, check_replicas: bool = False) -> jax.Array:
    """Makes a DTensor from its parts.

    Args:
        tensors: A part for each device of the mesh that belongs to this process, in the mesh's order; all of one shape
            and dtype. Devices that hold the same part of the tensor must be given equal ones.
        layout: The layout of the tensor.
        check_replicas: Whether to compare equal parts on devices too. By default they are believed to be equal, as in
            TensorFlow. Parts in host memory are always compared.

    Returns:
        The tensor, of shape `layout.global_shape(part.shape)`. It shares no memory with the parts.

    Raises:
        TensorError: The number of parts is wrong, their shapes or dtypes differ, or parts that must be equal are not.
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
        return _packed_from_host([part for part in parts if isinstance(part, np.ndarray)], layout, shape)
    owned = [owned_copy(part) if isinstance(part, np.ndarray) else jax.numpy.copy(part) for part in parts]
    placed = jax.device_put(owned, devices)
    return jax.make_array_from_single_device_arrays(shape, sharding, placed)


def _packed_from_host(parts: Sequence[np.ndarray], layout: Layout, shape: tuple[int, ...]) -> jax.Array:
    """Packs parts in host memory in one transfer, four times as fast as one for each device."""
    sharding, devices = layout.to_sharding(), layout.mesh.local_devices()
    indices = sharding.addressable_devices_indices_map(shape)
    by_start = {_start(indices[device]): owned_copy(part) for device, part in zip(devices, parts, strict=True)}
    return jax.make_array_from_callback(shape, sharding, lambda index: by_start[_start(index)])


def _start(index: tuple[slice, ...] | None) -> tuple[int, ...]:
    """Returns where a part begins in the tensor. (Slices cannot be keys of a dict before Python 3.12.)"""
    assert index is not None  # The device belongs to this process.
    return tuple(each.start or 0 for each in index)


def unpack(tensor: jax.Array) -> list[jax.Array]:
    """Returns copies of the parts of a DTensor that this process holds, each on its device, in the mesh's order.

    Raises:
        TensorError: `tensor` is not a DTensor; for a variable pass its `value`.
        ProgramError: Called while a function is being traced.

    Example:
        >>> import numpy as np
        >>> layout = rx.dtensor.Layout(["x"], rx.dtensor.create_mesh([("x", 8)]))
        >>> [part.tolist() for part in rx.dtensor.unpack(rx.dtensor.relayout(np.arange(8), layout))]
        [[0], [1], [2], [3], [4], [5], [6], [7]]
    """
    _check_not_traced([tensor], "unpack")
    layout = _layout_of_dtensor(tensor, "unpack")
    shards = {shard.device: shard.data for shard in tensor.addressable_shards}
    parts = [shards[device] for device in layout.mesh.local_devices()]
    # jnp.copy would run a program on all devices of the default mesh.
    return [jax.device_put(part, part.sharding, may_alias=False) for part in parts]


@called_as("tf.experimental.dtensor.relayout")
def relayout(tensor: TensorLike, layout: Layout) -> jax.Array:
    """Returns a tensor with another layout: the same numbers, differently placed.

    In a traced function it tells XLA how to shard the value there, for dimensions of any length; its gradient is a
    relayout too.

    Args:
        tensor: DTensor, plain array or numbers, on any mesh or none.
        layout: The layout; `MATCH` keeps a dimension as it is.

    Raises:
        LayoutError: The rank is another one, or, outside of traced functions, a dimension does not divide.
        TensorError: `tensor` is not an array.

    Example:
        >>> import numpy as np
        >>> mesh = rx.dtensor.create_mesh([("x", 8)])
        >>> whole = rx.dtensor.relayout(np.arange(8), rx.dtensor.Layout(["x"], mesh))
        >>> [part.tolist() for part in rx.dtensor.unpack(whole)]
        [[0], [1], [2], [3], [4], [5], [6], [7]]
    """
    return laid_out(tensor, checked_layout(layout))


@called_as("tf.experimental.dtensor.relayout_like")
def relayout_like(tensor: TensorLike, layout_tensor: TensorLike) -> jax.Array:
    """Returns `tensor` with the layout of another one; see `relayout`.

    Raises:
        TensorError: `layout_tensor` is not a DTensor.
        ProgramError: `layout_tensor` is traced, and XLA chooses its layout. (A `DVariable` has one everywhere.)

    Example:
        >>> import numpy as np
        >>> layout = rx.dtensor.Layout(["x"], rx.dtensor.create_mesh([("x", 8)]))
        >>> like = rx.dtensor.relayout(np.arange(8), layout)
        >>> rx.dtensor.fetch_layout(rx.dtensor.relayout_like(np.ones(8), like)) == layout
        True
    """
    layout = fetch_layout(layout_tensor)
    if layout is None:
        raise TensorError(f"`layout_tensor` must be a DTensor or a DVariable, got {layout_tensor!r:.100}.")
    return relayout(tensor, layout)


@called_as("tf.experimental.dtensor.copy_to_mesh")
def copy_to_mesh(tensor: TensorLike, layout: Layout) -> jax.Array:
    """Returns a tensor with a layout of any mesh, like `relayout`; it shares no buffer with the original.

    Example:
        >>> import numpy as np
        >>> layout = rx.dtensor.Layout.replicated(rx.dtensor.create_mesh([("x", 8)]), rank=1)
        >>> rx.dtensor.copy_to_mesh(np.ones(3), layout).tolist()
        [1.0, 1.0, 1.0]
    """
    return laid_out(tensor, checked_layout(layout), copy=True)


def fetch_layout(tensor: object) -> Layout | None:
    """Returns the layout of a DTensor, a `DVariable`, or another variable (of Keras too) that lives on a mesh.

    The layout of a strategy's variable is for the strategy's mesh, whose first dimension is `"replica"`. It is None for
    anything that is not an array or a variable.

    Raises:
        TensorError: `tensor` is an array or a variable, but does not live on a mesh, or has a component for each
            replica.
        ProgramError: It is a traced array.

    Example:
        >>> import numpy as np
        >>> layout = rx.dtensor.Layout(["x"], rx.dtensor.create_mesh([("x", 8)]))
        >>> rx.dtensor.fetch_layout(rx.dtensor.relayout(np.ones(8), layout)).sharding_specs
        ('x',)
    """
    layout = getattr(tensor, "layout", None)
    if isinstance(layout, Layout):
        return layout
    if is_variable(tensor):
        return _checked_present(_layout_of_variable(tensor), tensor, "fetch_layout")
    if not isinstance(tensor, (jax.Array, np.ndarray)):
        return None
    return _layout_of_dtensor(tensor, "fetch_layout")


def is_dtensor(tensor: object) -> bool:
    """Returns whether `tensor` is an array over a mesh, or a variable that lives on one.

    Raises:
        ProgramError: It is traced.

    Example:
        >>> import numpy as np
        >>> layout = rx.dtensor.Layout(["x"], rx.dtensor.create_mesh([("x", 8)]))
        >>> rx.dtensor.is_dtensor(rx.dtensor.relayout(np.ones(8), layout)), rx.dtensor.is_dtensor(np.ones(8))
        (True, False)
    """
    if isinstance(getattr(tensor, "layout", None), Layout):
        return True
    if is_traced(tensor):
        raise _traced_error("is_dtensor")
    if is_variable(tensor):
        return _layout_of_variable(tensor) is not None
    return isinstance(tensor, jax.Array) and layout_of(tensor) is not None


def check_layout(tensor: jax.Array | variable_access.VariableLike, layout: Layout) -> None:
    """Checks that a tensor is placed as a layout says; `MATCH` allows any sharding.

    Two layouts agree if they place every element on the same devices, such as `UNSHARDED` and a mesh dimension of size
    1.

    Raises:
        LayoutError: It is placed differently.
        TensorError: `tensor` is not a DTensor.

    Example:
        >>> import numpy as np
        >>> mesh = rx.dtensor.create_mesh([("x", 8)])
        >>> layout = rx.dtensor.Layout.replicated(mesh, rank=1)
        >>> rx.dtensor.check_layout(rx.dtensor.copy_to_mesh(np.ones(4), layout), layout)
    """
    present = fetch_layout(tensor)
    if present is None:
        raise TensorError(f"Expected a DTensor, got {type(tensor).__name__}: {tensor!r:.100}.")
    shape = tensor.shape if isinstance(tensor, jax.Array) else variable_access.shape_of(tensor)
    checked_layout(layout).check_rank(shape)
    wanted = Layout(
        [
            now if spec == MATCH else spec
            for spec, now in zip(layout.sharding_specs, present.sharding_specs, strict=True)
        ],
        layout.mesh,
    )
    if not present.to_sharding().is_equivalent_to(wanted.to_sharding(), layout.rank):
        raise LayoutError(f"The tensor has the layout {present!r}, expected {layout!r}. `relayout` changes it.")


def _layout_of_dtensor(tensor: object, caller: str) -> Layout:
    if is_traced(tensor):
        raise _traced_error(caller)
    return _checked_present(layout_of(tensor) if isinstance(tensor, jax.Array) else None, tensor, caller)


def _layout_of_variable(variable: variable_access.VariableLike) -> Layout | None:
    if variable_access.is_per_replica_variable(variable):
        return None
    sharding: jax.sharding.Sharding | None = variable_access.layout_of(variable)
    placement = getattr(owner_of(variable), "placement", None)
    if sharding is None and placement is not None:  # The first program that reads the variable moves its value there.
        sharding = placement.variable_sharding(variable)
    value = variable_access.array_of(variable)
    if sharding is None and isinstance(value, jax.Array):
        sharding = value.sharding
    return layout_of(jax.ShapeDtypeStruct(variable_access.shape_of(variable), variable.dtype, sharding=sharding))


def _checked_present(layout: Layout | None, tensor: object, caller: str) -> Layout:
    if layout is None:
        raise TensorError(
            f"{caller} takes a DTensor (an array over a mesh), got {type(tensor).__name__}: {tensor!r:.100}. `pack` "
            "and `relayout` make one."
        )
    return layout


def _check_not_traced(tensors: Sequence[object], caller: str) -> None:
    """Checks that none of `tensors` is traced, and that results computed from them would not be traced either."""
    if any(map(is_traced, tensors)) or constants_are_traced():
        raise _traced_error(caller)


def _traced_error(caller: str) -> ProgramError:
    return ProgramError(
        f"{caller} was called while a function was being traced: a value has no layout there, since XLA will "
        "choose it. Ask outside of the function, or fix the layout inside with relayout(value, layout)."
    )


def _check_parts(parts: Sequence[jax.Array | np.ndarray], expected: int, layout: Layout) -> None:
    if len(parts) != expected:
        raise TensorError(
            f"pack needs a part for each of the {expected} devices of {layout.mesh!r} that belong to this process, got "
            f"{len(parts)}."
        )
    if not parts:
        raise TensorError(f"No device of {layout.mesh!r} belongs to this process, so there is nothing to pack here.")
    layout.check_rank(parts[0].shape)
    shapes, dtypes = dict.fromkeys(part.shape for part in parts), dict.fromkeys(part.dtype for part in parts)
    if len(shapes) > 1 or len(dtypes) > 1:
        raise TensorError(
            "All parts of a tensor must have one shape and dtype, got shapes "
            f"{[*shapes]} and dtypes {[str(dtype) for dtype in dtypes]}."
        )


def _check_replicas(parts: Sequence[jax.Array | np.ndarray], layout: Layout, also_on_devices: bool) -> None:
    offsets = layout.offset_to_shard()
    first: dict[tuple[int, ...], int] = {}
    for i, position in enumerate(layout.mesh.local_device_ids()):
        j = first.setdefault(offsets[position], i)
        one, other = parts[j], parts[i]
        if one is other or not (also_on_devices or (isinstance(one, np.ndarray) and isinstance(other, np.ndarray))):
            continue
        if not _are_equal(np.asarray(one), np.asarray(other)):
            raise TensorError(
                f"In {layout!r} the parts {j} and {i} are the same shard of the tensor, but they differ. Pass the same "
                "values for both, or a layout that shards the tensor between these devices."
            )


def _are_equal(one: np.ndarray, other: np.ndarray) -> bool:
    # Looking for NaN takes several times as long, so it is done only where there are differences.
    has_nan = jax.numpy.issubdtype(one.dtype, jax.numpy.inexact)
    return np.array_equal(one, other) or (has_nan and np.array_equal(one, other, equal_nan=True))
