"""A variable as programs see it, whichever class it has: one accessor for each thing that they ask of it.

The variables of Keras, `rx.Variable`, DTensor, flax and parameter servers have no base class in common. `VariableLike`
is common to all of them. A function here asks for each thing that only some have; its answer for all others is the
usual one. No other module looks for attributes of variables.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Container
from typing import Protocol, TypeGuard, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, Sharding


class VariableLike(Protocol):
    """The common part of a Keras variable, an `rx.Variable`, a `DVariable` and a parameter server's variable."""

    @property
    def name(self) -> str:
        """The name that its maker gave it."""

    @property
    def dtype(self) -> object:
        """Its dtype: NumPy's, or the name of one."""

    @property
    def value(self) -> jax.Array:
        """The value that user code reads: inside a traced function, the value there."""


class AssignableLike(VariableLike, Protocol):
    """A variable that user code can assign."""

    def assign(self, value: jax.typing.ArrayLike) -> object:
        """Gives it a new value: inside a traced function when that returns."""


#: Returns the array that a variable holds, outside of any traced function; None before it has its first value.
array_of: Callable[[VariableLike], jax.Array] = operator.attrgetter("_value")


def has_array(variable: VariableLike) -> bool:
    """Returns whether the variable has its first value."""
    return getattr(variable, "_value", None) is not None


def set_array(variable: VariableLike, array: jax.Array) -> None:
    """Makes `array` what the variable holds: no check, no copy, no trace."""
    variable._value = array  # type: ignore[attr-defined]  # the one place that reaches into all classes of variables


def was_made(variable: object) -> bool:
    """Returns whether the variable is complete: `__init__` is called again where one that exists is made again."""
    return getattr(variable, "_shape", None) is not None


def shape_of(variable: VariableLike) -> tuple[int, ...]:
    """Returns the shape of one copy of the variable."""
    return tuple(variable._shape)  # type: ignore[attr-defined]


def dtype_of(variable: VariableLike) -> jax.typing.DTypeLike:
    """Returns the dtype of its value, whatever Keras's autocasting makes of it where it is read."""
    dtype: jax.typing.DTypeLike = variable._dtype  # type: ignore[attr-defined]
    return dtype


def name_of(variable: VariableLike) -> str:
    """Returns the name for messages: a Keras variable's path, otherwise its name."""
    return getattr(variable, "path", None) or variable.name


def free_name(name: str, taken: Container[str], first: int = 2) -> str:
    """Returns a name, and if it is taken, the name with the first number at its end that makes it another one."""
    numbered = (f"{name}_{number}" for number in itertools.count(first))
    return name if name not in taken else next(each for each in numbered if each not in taken)


def layout_of(variable: VariableLike) -> NamedSharding | None:
    """Returns the sharding that the variable itself prescribes; None for most."""
    # A `dtensor.DVariable` has one, and so have Keras variables made for such a variable or under `keras.distribution`.
    layout = getattr(variable, "_layout", None)
    return getattr(layout, "backend_layout", layout)


def is_variable(value: object) -> TypeGuard[VariableLike]:
    """Returns whether `value` is a variable of Keras or of replicax, and not just something that can be assigned."""
    return hasattr(value, "assign") and hasattr(value, "_value")


def is_trained(variable: VariableLike) -> bool:
    """Returns whether optimizers train the variable: integers, such as a counter of steps, have no gradient."""
    return bool(getattr(variable, "trainable", False)) and jnp.issubdtype(dtype_of(variable), jnp.inexact)


class TreeLeaf:
    """An array or number in a pytree, such as a state of optax, as the rules for variables see it."""

    def __init__(self, name: str, value: jax.typing.ArrayLike):
        # The keys that lead to it, such as `"0/params/Dense_0/kernel"`.
        self.name, self.value = name, cast(jax.Array, value)
        self.dtype = self._dtype = jax.typeof(value).dtype  # on a device
        self._shape = np.shape(value)


class StoredForm(Protocol):
    """The form that files have of a variable whose order of rows depends on the number of devices."""

    shape: tuple[int, ...]  # in files

    def stored(self, value: jax.Array) -> jax.Array | np.ndarray:
        """Returns what files have for a value of the variable."""

    def restored(self, stored: jax.typing.ArrayLike) -> jax.Array:
        """Returns the value of the variable for what a file has."""


def stored_form_of(variable: VariableLike) -> StoredForm | None:
    """Returns the form in which files have a variable; None if it is that of the variable."""
    form: StoredForm | None = getattr(variable, "stored_form", None)
    return form


def is_replaced_by_gradient(variable: VariableLike) -> bool:
    """Returns whether what stands for the variable's gradient is its new value: a scale or maximum of 8-bit floats."""
    # Keras's optimizers assign it. Of parts of a batch the largest counts; a sum would be no maximum of the batch.
    return getattr(variable, "overwrite_with_gradient", False)


def has_split_rows(variable: VariableLike) -> bool:
    """Returns whether each replica has some of the variable's rows, as it has of a batch: an embedding table."""
    return getattr(variable, "split_rows", False)


def synchronization_of(variable: object) -> object:
    """Returns when replicas' values are combined: Keras's text, or a member of `rx.VariableSynchronization`."""
    return getattr(variable, "synchronization", None)


def aggregation_of(variable: object) -> str | None:
    """Returns how replicas' values are combined: Keras's text, or a member of `rx.VariableAggregation`."""
    return getattr(variable, "aggregation", None)


def lives_elsewhere(variable: VariableLike) -> bool:
    """Returns whether other processes have a variable's value: it has a lock of its own there, and reading may wait."""
    # Nobody reads such a variable while it is their turn (`runtime/turns.py`): what they wait for, as when a lost
    # server is replaced, has to take turns itself.
    return getattr(variable, "_replicax_is_remote", False)


def is_per_worker(variable: object) -> bool:
    """Returns whether each worker of a parameter server strategy keeps a value of the variable for itself."""
    return getattr(variable, "per_worker", False)


def restorations_of(variable: VariableLike) -> int:
    """Returns how often the values of lost servers have been restored since the variable was made; mostly 0."""
    return getattr(variable, "_replicax_restorations", 0)


def is_saved_as_bfloat16(variable: object) -> bool:
    """Returns whether checkpoints have the variable in half of its bytes."""
    return getattr(variable, "save_as_bf16", False)


def optimizer_check_of(variable: VariableLike) -> Callable[[object], None] | None:
    """Returns what raises an error for an optimizer that cannot train the variable; None if every one can."""
    return getattr(variable, "optimizer_check", None)


def store(variable: VariableLike, array: jax.Array) -> None:
    """Gives a variable the array that it holds from now on, here or where it lives; others are assigned it."""
    if hasattr(variable, "_store"):
        variable._store(array)
    else:
        cast(AssignableLike, variable).assign(array)


def is_per_replica_variable(variable: VariableLike) -> bool:
    """Returns whether the variable keeps one component for each replica, stacked."""
    return getattr(variable, "per_replica", False)


def bytes_of(variable: VariableLike, sharding: Sharding | None) -> int:
    """Returns the bytes that a device holds of a variable, or of a leaf, with a sharding; None: of one copy of it."""
    shape = shape_of(variable)
    part = shape if sharding is None else sharding.shard_shape(shape)
    dtype = dtype_of(variable) if isinstance(variable, TreeLeaf) else jnp.dtype(dtype_of(variable))
    return math.prod(part) * int(dtype.itemsize)  # type: ignore[union-attr]  # a dtype, NumPy's or of random keys
