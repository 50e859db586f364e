"""Per-replica values that are used as if they were arrays: a replica has its component, anybody else gets a hint."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import replicax.context as context
from replicax.compat.jax import refuse_as_argument
from replicax.errors import ArgumentError, ReplicaShapeError
from replicax.typing import Leaf, PyTree

#: Attributes that people ask an array for.
_ATTRIBUTES = frozenset({
    "T", "all", "any", "argmax", "argmin", "astype", "at", "block_until_ready", "copy", "device", "devices", "dtype",
    "flatten", "item", "max", "mean", "min", "ndim", "numpy", "prod", "ravel", "reshape", "round", "shape", "size",
    "sharding", "squeeze", "std", "sum", "tolist", "transpose", "var",
})  # fmt: skip


class NoArray(np.lib.mixins.NDArrayOperatorsMixin):
    """Base of values with one component per replica: operators, conversions and attributes of arrays.

    Inside `strategy.run` a value that the step has captured stands for the running replica's component, as in
    tf.distribute. Anywhere else it is no array.
    """

    __slots__ = ()

    def own(self) -> jax.Array:
        """Returns the running replica's component; only called inside `strategy.run`."""
        raise _not_an(self, "array")

    def _array(self, what: str) -> jax.Array:
        if context.current().replica is None:
            raise _not_an(self, what)
        return self.own()

    # Operators and NumPy's functions.

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Leaf, **kwargs: PyTree) -> jax.Array:
        values = [jnp.asarray(x) if hasattr(x, "__jax_array__") else x for x in inputs]  # of itself, and of variables
        if method != "__call__" or kwargs:
            raise _not_an(self, "NumPy array")
        return getattr(jnp, ufunc.__name__)(*values)

    # A comparison with None, a string and the like does not mean the components: there Python compares identities.

    def __eq__(self, other: object) -> Any:
        return super().__eq__(other) if _is_comparable(other) else NotImplemented

    def __ne__(self, other: object) -> Any:
        return super().__ne__(other) if _is_comparable(other) else NotImplemented

    __hash__ = object.__hash__

    def __jax_array__(self) -> jax.Array:
        return self._array("array")

    def __array__(self, dtype: np.typing.DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._array("array"), dtype=dtype, copy=copy)

    def __getitem__(self, index: object) -> jax.Array:
        return self._array("array or sequence")[index]

    def __setitem__(self, index: object, value: object) -> None:
        raise _not_an(self, "array or list")

    def __iter__(self) -> Iterator[jax.Array]:
        return iter(self._array("array or sequence"))

    def __len__(self) -> int:
        return len(self._array("array or sequence"))

    def __contains__(self, item: object) -> bool:
        return item in self._array("array or sequence")

    # Numbers.

    def __bool__(self) -> bool:
        return bool(self._array("condition"))

    def __float__(self) -> float:
        return float(self._array("number"))

    def __int__(self) -> int:
        return int(self._array("number"))

    def __complex__(self) -> complex:
        return complex(self._array("number"))

    def __index__(self) -> int:
        return int(self._array("number or index"))

    def __round__(self, digits: int | None = None) -> jax.Array:
        return round(self._array("number"), digits)

    def __format__(self, spec: str) -> str:
        return format(self._array("number"), spec) if spec else str(self)

    def __getattr__(self, name: str) -> Any:
        if name in _ATTRIBUTES and context.current().replica is not None:
            return getattr(self._array("array"), name)
        if name in _ATTRIBUTES:
            raise AttributeError(f"A per-replica value has no {name!r}: {_hint(self)}")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def _not_an(value: NoArray, what: str) -> ArgumentError:
    return ArgumentError(f"A per-replica value is no {what}: {_hint(value)}")


def _hint(value: NoArray) -> str:
    shown = " ".join(f"{value!r:.80}".split())
    return (
        "it has one component for each replica. strategy.reduce('sum', value) or strategy.gather(value, axis=0) makes "
        "one value of them, strategy.local_results(value) lists them, and a step computes with them: "
        f"strategy.run(step, args=(value,)). Got {shown}."
    )


def _is_comparable(value: object) -> bool:
    return isinstance(value, (NoArray, jax.Array, np.ndarray, np.generic, bool, int, float, complex))


refuse_as_argument(NoArray, lambda value: ReplicaShapeError(str(_not_an(value, "array"))))
