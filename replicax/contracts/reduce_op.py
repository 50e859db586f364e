"""The two ways to combine values of several replicas, and the split of a sum into terms."""

from __future__ import annotations

import enum

import jax
import jax.numpy as jnp
import numpy as np

from replicax.errors import ReduceError


class ReduceOp(enum.Enum):
    """How to combine one value per replica: `SUM` or `MEAN`.

    An op can be given by its name too, in any case: `"sum"`, `"MEAN"`.

    Example:
        >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> value = strategy.run(lambda: rx.get_replica_context().replica_id_in_sync_group)
        >>> float(strategy.reduce(rx.ReduceOp.MEAN, value, axis=None))
        0.5
    """

    SUM = "sum"
    MEAN = "mean"

    @classmethod
    def of(cls, op: ReduceOp | str) -> ReduceOp:
        """Returns the op that `op` names.

        Raises:
            ReduceError: `op` is neither a `ReduceOp` nor the name of one.

        Example:
            >>> ReduceOp.of("Mean")
            <ReduceOp.MEAN: 'mean'>
        """
        return cls(op.lower() if isinstance(op, str) else op)

    @classmethod
    def _missing_(cls, value: object) -> ReduceOp:
        raise ReduceError(
            f"A reduce op must be rx.ReduceOp.SUM ('sum') or rx.ReduceOp.MEAN ('mean'), got {value!r:.100}."
        )

    @classmethod
    def from_variable_aggregation(cls, aggregation: enum.Enum | str) -> ReduceOp:
        """Returns the op that combines values as a variable does.

        Args:
            aggregation: `rx.VariableAggregation.SUM` or `MEAN`, or their names.

        Raises:
            ReduceError: It is another aggregation, which combines nothing.
        """
        return cls.of(aggregation.value if isinstance(aggregation, enum.Enum) else aggregation)


def in_which_means_add_up(dtype: np.dtype) -> np.dtype:
    """Returns the dtype in which the terms of a mean are added, so that their sum does not overflow."""
    # The rule of `jnp.mean`: the float dtype of their mean for integers, float32 for floats with a smaller range
    # (float16).
    if not jnp.issubdtype(dtype, jnp.inexact):
        return jax.eval_shape(jnp.mean, jax.ShapeDtypeStruct((1,), dtype)).dtype
    is_narrow = jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).maxexp < jnp.finfo(jnp.float32).maxexp
    return jnp.dtype(jnp.float32) if is_narrow else dtype


def check_numbers(array: jax.Array, position: int) -> None:
    """Checks that an array can be summed over replicas, however many there are."""
    if not jnp.issubdtype(array.dtype, jnp.number):
        raise ReduceError(
            f"Only numbers can be summed, but value {position} (shape {array.shape}) is of dtype {array.dtype}. "
            "Convert it first, for example with `.astype('int32')`."
        )


def as_mean(array: jax.Array) -> jax.Array:
    """Returns what is the mean of one value, or of equal ones, in the dtype that the mean of others has."""
    return array if jnp.issubdtype(array.dtype, jnp.inexact) else array.astype(in_which_means_add_up(array.dtype))


def as_sum(array: jax.Array) -> jax.Array:
    """Returns what `strategy.reduce` gives for the sum of one value, in the dtype that the sum of others has."""
    return array if jnp.issubdtype(array.dtype, jnp.inexact) else jnp.sum(array[None], axis=0)


def mean_over(axis_name: str, value: jax.Array) -> jax.Array:
    """Returns the mean of a value over a mesh axis, inside `jax.shard_map`: a float for integers."""
    mean = jax.lax.pmean(value.astype(in_which_means_add_up(value.dtype)), axis_name)
    return mean.astype(value.dtype) if jnp.issubdtype(value.dtype, jnp.inexact) else mean


def terms_of(total: jax.Array, number: int) -> jax.Array:
    """Splits a total into about equal terms, along a new first axis, whose sum in any order is exactly the total.

    Example:
        >>> terms_of(jnp.int32(14), 4).tolist()
        [4, 4, 3, 3]
    """
    if jnp.issubdtype(total.dtype, jnp.complexfloating):
        return jax.lax.complex(terms_of(total.real, number), terms_of(total.imag, number))
    if jnp.issubdtype(total.dtype, jnp.integer):
        wide = total.astype(jnp.int32) if total.dtype.itemsize < 4 else total
        quotient, remainder = jnp.divmod(wide, jnp.asarray(number, wide.dtype))
        order = jnp.arange(number, dtype=wide.dtype).reshape(-1, *(1,) * total.ndim)
        return (quotient + (order < remainder)).astype(total.dtype)
    # With so many free bits, every partial sum is a multiple of the total's last bit, so nothing is rounded.
    kind, spare = jnp.finfo(total.dtype), number.bit_length()
    share = jnp.zeros_like(total)
    if kind.nmant > spare:
        share = jax.lax.reduce_precision(total / number, kind.nexp, kind.nmant - spare)
    rest = jnp.where(jnp.isfinite(total), total - (number - 1) * share, total)
    return jnp.concatenate([rest[None], jnp.broadcast_to(share, (number - 1, *total.shape))])
