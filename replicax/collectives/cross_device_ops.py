"""The contract of the cross-device ops: how the replicas' values become one sum on every replica."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import cast, final

import jax
import jax.numpy as jnp
import numpy as np

from replicax.collectives.compression import BFLOAT16, is_of_gradients
from replicax.collectives.options import CommunicationOptions
from replicax.collectives.packing import planned
from replicax.compat.jax import vary, varying_axes
from replicax.contracts.advice import AdvisedContract
from replicax.contracts.reduce_op import ReduceOp, check_numbers, in_which_means_add_up
from replicax.errors import ArgumentError, ContextError, ReduceError

# The methods of tf.distribute's class, which a subclass that was written for it defines.
_TENSORFLOWS = frozenset(
    f"{method}{ending}" for method in ("reduce", "batch_reduce", "broadcast") for ending in ("", "_implementation")
)


class CrossDeviceOps(AdvisedContract):
    """An algorithm that sums one list of arrays per replica, so that every replica gets the sums.

    It works inside `jax.shard_map`, under `jax.jit` or op by op, manual over the mesh axis that holds the replicas and
    with replication checking on (`check_vma=True`, the default): there JAX types every array as *varying* over the axis
    or as *equal* on all its devices.

    A subclass fills in `_all_reduce_sum` and nothing else. Every op can be differentiated, forwards and in reverse, any
    number of times: a sum is linear, so tangents always take XLA's own sum, whatever algorithm carried the values.

    Attributes:
        num_packs: Number of packs for the small arrays of one dtype, 0 for none. Within one process there are more
            where a pack would hold more than 8 arrays: no step is slower for it, and deep models compile faster.
            `CommunicationOptions.bytes_per_pack` wins over it.

    Example:
        >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"], cross_device_ops=rx.RingAllReduce())
        >>> isinstance(strategy.cross_device_ops, rx.CrossDeviceOps)
        True
    """

    num_packs: int = 0

    @property
    def bytes_per_pack(self) -> int:
        """The bytes of a pack where the options of a call say nothing; 0 for `num_packs` of small arrays alone."""
        return 0

    def __init_subclass__(cls, **keywords: object) -> None:
        super().__init_subclass__(**keywords)
        theirs = sorted(_TENSORFLOWS & vars(cls).keys())
        if theirs:
            raise ArgumentError(
                f"{cls.__name__} defines {', '.join(theirs)}, which tf.distribute calls and replicax does not. Define "
                "_all_reduce_sum(self, buffers, axis_name, num_replicas) instead: it sums each array of a list over "
                "a mesh axis, inside jax.shard_map."
            )

    def for_devices(self, devices: Sequence[jax.Device]) -> CrossDeviceOps:
        """Returns these ops for replicas that live on `devices`, in replica order; a strategy calls it once.

        Raises:
            DeviceError: The ops name a device that is none of them.
        """
        del devices
        return self

    @final
    def all_reduce(
        self,
        op: ReduceOp | str,
        values: Sequence[jax.Array],
        *,
        axis_name: str,
        num_replicas: int,
        options: CommunicationOptions | None = None,
    ) -> list[jax.Array]:
        """Combines each array with those of the other replicas.

        Args:
            op: `"sum"` or `"mean"`. A sum keeps the dtype, so small integers wrap around. A mean adds up in a dtype
                that holds the sum (float16 in float32); that of integers is floating.
            values: This replica's arrays, varying over the axis: numbers of any dtype (not bool) and any shape, scalars
                and empty arrays too. Every replica passes the same shapes and dtypes.
            axis_name: The mesh axis that holds the replicas.
            num_replicas: The size of that axis. With one replica a value need not vary.
            options: Hints of this call; see `CommunicationOptions`.

        Returns:
            The combined arrays in the same order and shapes, bitwise equal on all replicas and typed as equal. NaN and
            infinity pass through; integers wrap around as they do in any sum.

        Raises:
            ArgumentError: `values` is not a list of arrays, `options` are none, or the axis has another size.
            ContextError: There is no manual axis of that name here.
            ReduceError: An unknown op, an array that is not of numbers, or one that is equal on all replicas already.
        """
        op, options = ReduceOp.of(op), _checked_options(options)
        _check_axis(axis_name, num_replicas)
        arrays = _checked_arrays(values, axis_name, num_replicas)
        outgoing = [_to_wire(array, op, options, num_replicas) for array in arrays]
        travels = num_replicas > 1
        packing = planned(
            outgoing,
            self.num_packs if travels else 0,
            (options.bytes_per_pack or self.bytes_per_pack) if travels else 0,
        )
        sums = packing.unpack(self._sum_all(packing.pack(outgoing), axis_name, num_replicas))
        return [_from_wire(total, array.dtype, op, num_replicas) for total, array in zip(sums, arrays, strict=True)]

    @abc.abstractmethod
    def _all_reduce_sum(self, buffers: list[jax.Array], axis_name: str, num_replicas: int) -> list[jax.Array]:
        """Sums each buffer over the axis; returns sums of the same shapes and dtypes, typed as equal over it.

        The buffers hold numbers, may be empty, and vary over the axis, which may have size 1. An algorithm whose
        results JAX cannot prove equal ends with `compat.jax_primitives.assert_equal_over_axis`, and owes that they are,
        bit by bit.
        """

    def _sum_tangents(self, tangents: list[jax.Array], axis_name: str) -> list[jax.Array]:
        """Sums floating tangents over the axis, by operations that JAX can differentiate and transpose."""
        summed: list[jax.Array] = jax.lax.psum(tangents, axis_name)
        return summed

    def _sum_all(self, buffers: list[jax.Array], axis_name: str, num_replicas: int) -> list[jax.Array]:
        # An empty array has no sum to make. (Passing one through crashes XLA's CPU compiler of jaxlib 0.11.)
        sums = iter(self._differentiable_sum([b for b in buffers if b.size], axis_name, num_replicas))
        return [next(sums) if b.size else jnp.zeros(b.shape, b.dtype) for b in buffers]

    def _differentiable_sum(self, buffers: list[jax.Array], axis_name: str, num_replicas: int) -> list[jax.Array]:
        @jax.custom_jvp
        def total(buffers: list[jax.Array]) -> list[jax.Array]:
            sums = self._all_reduce_sum(buffers, axis_name, num_replicas)
            if not isinstance(sums, (list, tuple)) or len(sums) != len(buffers):
                raise ArgumentError(
                    f"{type(self).__name__}._all_reduce_sum must return a list of {len(buffers)} sums, one for each "
                    f"buffer, got {sums!r:.100}."
                )
            return list(sums)

        @total.defjvp
        def total_jvp(
            primals: tuple[list[jax.Array]], wrapped: tuple[list[jax.Array]]
        ) -> tuple[list[jax.Array], list[jax.Array]]:
            [tangents] = wrapped
            # Integers have tangents of dtype float0, which hold nothing: there is nothing to sum.
            zeros = [np.zeros(tangent.shape, jax.dtypes.float0) for tangent in tangents]
            results = cast(list[jax.Array], zeros)
            floating = [i for i, tangent in enumerate(tangents) if tangent.dtype != jax.dtypes.float0]
            sums = self._sum_tangents([tangents[i] for i in floating], axis_name)
            for i, tangent in zip(floating, sums, strict=True):
                results[i] = tangent
            return total(*primals), results

        return total(buffers) if buffers else []


def _checked_options(options: CommunicationOptions | None) -> CommunicationOptions:
    if options is None:
        return CommunicationOptions()
    if not isinstance(options, CommunicationOptions):
        raise ArgumentError(f"`options` must be an rx.CommunicationOptions or None, got {options!r}.")
    if is_of_gradients(options.compression):
        raise ArgumentError(
            f"Cross-device ops know no {options.compression!r}: it is an algorithm of its own, which uses them. Give "
            "it to a strategy, for the gradients of rx.value_and_grad, or to rx.get_replica_context().all_reduce."
        )
    return options


def _check_axis(axis_name: str, num_replicas: int) -> None:
    try:
        size = jax.lax.axis_size(axis_name)
    except NameError:
        raise ContextError(
            f"Cross-device ops work inside jax.shard_map, manual over the replicas' axis, but there is no axis "
            f"{axis_name!r} here. In user code call rx.get_replica_context().all_reduce inside strategy.run."
        ) from None
    if size != num_replicas:
        raise ArgumentError(f"`num_replicas` must be the size of the axis {axis_name!r}, {size}, got {num_replicas!r}.")


def _checked_arrays(values: Sequence[object], axis_name: str, num_replicas: int) -> list[jax.Array]:
    """Returns `values` as arrays that vary over the axis, or says which one cannot be reduced."""
    if not isinstance(values, list | tuple):
        raise ArgumentError(f"`values` must be a list of arrays, got {type(values).__name__}: {values!r}.")
    return [_checked_array(i, value, axis_name, num_replicas) for i, value in enumerate(values)]


def _checked_array(position: int, value: object, axis_name: str, num_replicas: int) -> jax.Array:
    try:
        array = jnp.asarray(value)
    except (TypeError, ValueError):
        raise ArgumentError(f"Value {position} must be an array, got {type(value).__name__}: {value!r}.") from None
    check_numbers(array, position)
    if num_replicas > 1 and axis_name not in varying_axes(array):
        raise ReduceError(
            f"Value {position} (shape {array.shape}, dtype {array.dtype}) is equal on all {num_replicas} replicas "
            f"already: a sum would multiply it by {num_replicas}, a mean would not change it. Use the value as it is, "
            f"or multiply by {num_replicas} if you mean that. (Inside a jax.shard_map of your own, keep "
            "check_vma=True: without it JAX does not track which values differ.)"
        )
    return vary(array, axis_name)


def _to_wire(array: jax.Array, op: ReduceOp, options: CommunicationOptions, num_replicas: int) -> jax.Array:
    """Converts an array to the dtype in which it is summed."""
    if jnp.issubdtype(array.dtype, jnp.floating):
        is_wide = array.dtype.itemsize >= jnp.dtype(jnp.float32).itemsize
        compresses = options.compression == BFLOAT16 and is_wide and num_replicas > 1
        if compresses:
            return array.astype(jnp.bfloat16)
    return array.astype(in_which_means_add_up(array.dtype)) if op is ReduceOp.MEAN else array


def _from_wire(total: jax.Array, dtype: np.dtype, op: ReduceOp, num_replicas: int) -> jax.Array:
    """Converts a sum back to the dtype of the values and, for a mean, divides it."""
    if op is ReduceOp.SUM:
        return total.astype(dtype)
    if jnp.issubdtype(dtype, jnp.integer):
        return total / num_replicas
    # Divided where it was added up: the sum may not fit in the dtype of the mean. (What travelled narrower is widened.)
    wide = in_which_means_add_up(dtype)
    return (total.astype(wide) / num_replicas).astype(dtype)
