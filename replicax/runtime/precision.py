"""`precision=`: what a strategy's models compute in. Variables, gradients and reductions stay in float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from replicax.errors import ArgumentError
from replicax.runtime.devices import device_name
from replicax.typing import PyTree


class Precision(NamedTuple):
    """A dtype to compute in.

    Attributes:
        name: As strategies take it, such as `"bf16"`.
        dtype: Of products and activations.
        keras_policy: The name of Keras's dtype policy for it.
    """

    name: str
    dtype: jnp.dtype
    keras_policy: str

    def cast(self, tree: PyTree) -> PyTree:
        """Returns the tree with its arrays of floating-point numbers in this dtype."""
        return jax.tree.map(lambda leaf: leaf.astype(self.dtype) if _is_floating(leaf) else leaf, tree)


_KNOWN = {
    "bf16": Precision("bf16", jnp.dtype(jnp.bfloat16), "mixed_bfloat16"),
    "fp16": Precision("fp16", jnp.dtype(jnp.float16), "mixed_float16"),
    "fp8": Precision("fp8", jnp.dtype(jnp.bfloat16), "float8_from_mixed_bfloat16"),
}
_FP8_CAPABILITY = 8.9  # NVIDIA's Ada and Hopper are the first GPUs that multiply 8-bit floats.


def checked_precision(precision: str | None, devices: Sequence[jax.Device]) -> Precision | None:
    """Returns what a strategy's argument `precision` stands for; None, and `"fp32"`, stand for float32."""
    if precision is None or precision == "fp32":
        return None
    if not isinstance(precision, str) or precision not in _KNOWN:
        known = ", ".join(map(repr, ("fp32", *_KNOWN)))
        raise ArgumentError(f"`precision` is one of {known}, or None for float32, got {precision!r:.100}.")
    if precision == "fp8" and (without := [device for device in devices if not _multiplies_8_bits(device)]):
        raise ArgumentError(
            f"precision='fp8' needs GPUs of compute capability {_FP8_CAPABILITY} or newer, and "
            f"{device_name(without[0])} ({without[0].device_kind}) is none. Use 'bf16'."
        )
    return _KNOWN[precision]


def adding_dtype(dtype: np.dtype) -> np.dtype:
    """Returns the dtype in which numbers of `dtype` are added up: float32 for floats of fewer bits."""
    is_short = jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32
    return np.dtype(np.float32) if is_short else dtype


def _multiplies_8_bits(device: jax.Device) -> bool:
    return device.platform == "gpu" and float(getattr(device, "compute_capability", 0)) >= _FP8_CAPABILITY


def _is_floating(leaf: object) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jnp.floating)
