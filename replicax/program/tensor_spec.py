"""`rx.TensorSpec`: the shape and dtype of an argument, where sizes may be left open."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from replicax.checks import is_int
from replicax.errors import ArgumentError


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """The shape and dtype of an array, as `tf.TensorSpec`; `jax.ShapeDtypeStruct` has no open sizes.

    Attributes:
        shape: The sizes; None for a size that is not fixed.
        dtype: The dtype.
        name: A name for the reader; it has no effect.

    Raises:
        ArgumentError: `shape` is no sequence of sizes and None, or `dtype` is no dtype.

    Example:
        >>> rx.TensorSpec((None, 3), "float32")
        TensorSpec(shape=(None, 3), dtype=dtype('float32'), name=None)
    """

    shape: Sequence[int | None]
    dtype: jax.typing.DTypeLike = "float32"
    name: str | None = None

    def __post_init__(self) -> None:
        is_shape = isinstance(self.shape, (list, tuple)) and all(map(_is_size, self.shape))
        if not is_shape:
            raise ArgumentError(
                f"`shape` is a list or tuple of sizes, or None for an open one, got {self.shape!r:.100}."
            )
        object.__setattr__(self, "shape", tuple(self.shape))
        try:
            object.__setattr__(self, "dtype", jnp.dtype(self.dtype))
        except TypeError as error:
            raise ArgumentError(f"`dtype` is a dtype such as 'float32', got {self.dtype!r:.100}.") from error


def _is_size(size: object) -> bool:
    return size is None or (is_int(size) and size >= 0)
