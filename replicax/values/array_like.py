"""Behaving like an array: operators, NumPy functions and conversions for objects that hold one."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from replicax.checks import is_int
from replicax.compat.jax import refuse_as_argument
from replicax.contracts.variable_access import VariableLike
from replicax.errors import VariableError
from replicax.typing import Leaf, PyTree


class ArrayLike(np.lib.mixins.NDArrayOperatorsMixin):
    """Base of objects that stand for an array: their `value`. Operators and ufuncs return JAX arrays."""

    @property
    def value(self) -> jax.Array:
        """The array."""
        raise NotImplementedError

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the value."""
        return self.value.shape

    @property
    def ndim(self) -> int:
        """Number of dimensions of the value."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of entries of the value."""
        return math.prod(self.shape)

    def __jax_array__(self) -> jax.Array:
        return self.value

    def __array__(self, dtype: np.typing.DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.value, dtype=dtype, copy=copy)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Leaf, **kwargs: PyTree) -> jax.Array:
        if "out" in kwargs:
            raise VariableError(
                f"{self!r} cannot be changed in place by an operator or NumPy. Use assign, assign_add or assign_sub."
            )
        values = [x.value if isinstance(x, ArrayLike) else x for x in inputs]
        if method != "__call__":  # np.sum and its like
            return getattr(ufunc, method)(*map(np.asarray, values), **kwargs)
        return getattr(jnp, ufunc.__name__)(*values, **kwargs)

    def __getitem__(self, index: object) -> jax.Array:
        """Returns entries as the array's own indexing does; but a number that is out of range is an error."""
        # JAX would give the last entry.
        check_index(index, self.shape)
        return self.value[index]

    def __iter__(self) -> Iterator[jax.Array]:
        return iter(self.value)

    def __contains__(self, item: object) -> bool:
        return item in self.value

    def __len__(self) -> int:
        return len(self.value)

    def __float__(self) -> float:
        return float(self.value)

    def __int__(self) -> int:
        return int(self.value)

    def __index__(self) -> int:
        return operator.index(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __round__(self, digits: int | None = None) -> jax.Array:
        return round(self.value, digits)

    def __format__(self, spec: str) -> str:
        return format(self.value, spec) if spec else str(self)

    # They are compared element by element, like arrays, and told apart by identity where they are keys.
    __hash__ = object.__hash__


def check_index(index: object, shape: Sequence[int]) -> None:
    """Checks the numbers in an index, as far as dimensions are counted from the first one."""
    for each, size in zip(index if isinstance(index, tuple) else (index,), shape, strict=False):
        if is_int(each):
            if not -size <= each < size:
                raise IndexError(f"The index {each} is out of range: the dimension has {size} entries.")
        elif not isinstance(each, slice):
            return


def not_an_array(variable: VariableLike) -> VariableError:
    """Returns the error for a variable, of replicax or of Keras, that a function of JAX got for an array."""
    return VariableError(
        f"{variable!r:.200} is a variable, and functions of JAX take arrays. Give them its value: jnp.sum(v.value). To "
        "differentiate with respect to variables, use rx.value_and_grad(loss_fn, variables) or rx.grad."
    )


refuse_as_argument(ArrayLike, not_an_array)
