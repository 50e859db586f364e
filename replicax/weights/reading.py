"""One file of weights that is being read into a model: what it holds, what was asked for, and what took it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import jax
import numpy as np

import replicax.context as context
from replicax.contracts.variable_access import VariableLike, dtype_of, name_of, shape_of
from replicax.errors import WeightsError
from replicax.weights.homes import home_of, set_home_value
from replicax.weights.matching import Entry, complaints
from replicax.weights.pieces import Piece, Tensor, has_numbers, placed


def being_checked() -> Reading | None:
    """Returns the reading for which this thread only checks what would be assigned; None if it assigns."""
    return cast("Reading | None", context.current().checked_weights)


@dataclass
class Reading:
    """The reading of one file."""

    path: str  # what the file is called in messages
    used: set[str] = field(default_factory=set)  # the names of the tensors that were asked for
    assigned: set[int] = field(default_factory=set)  # the variables that a tensor was assigned to, by `id`
    # By `id`, variables that got a tensor of another shape or without numbers, and what the file has of it.
    misfits: dict[int, tuple[VariableLike, Entry]] = field(default_factory=dict)

    def assign(self, variable: VariableLike, tensor: StoredTensor) -> None:
        """Assigns the values of a tensor to a variable."""
        if not has_numbers(tensor.dtype):
            raise WeightsError(
                f"Variable {name_of(variable)!r} takes numbers, and {tensor.name!r} in {self.path} has dtype "
                f"{tensor.dtype}."
            )
        if tensor.shape != shape_of(variable):
            raise WeightsError(
                f"Variable {name_of(variable)!r} has shape {shape_of(variable)}, and {tensor.name!r} in {self.path} "
                f"has shape {tensor.shape}."
            )
        place(variable, tensor.tensor)

    @contextlib.contextmanager
    def only_checking(self) -> Iterator[None]:
        """Notes assignments to variables in a `with` block, in place of making them."""
        with context.entered(checked_weights=self):
            yield

    def note(self, variable: VariableLike, value: object) -> None:
        """Notes that a variable would be assigned a tensor, or what a layer has computed from one."""
        misfit = _misfit(variable, value)
        if misfit is not None:
            self.misfits[id(variable)] = variable, misfit
        else:
            self.misfits.pop(id(variable), None)
            self.assigned.add(id(variable))

    def check(self, variables: Sequence[VariableLike], stored: Mapping[str, Entry], cause: Exception | None) -> None:
        """Checks that each tensor of the file has found a variable, and each variable a tensor of its shape."""
        without = [v for v in variables if id(v) not in self.assigned and id(v) not in self.misfits]
        left = {name: entry for name, entry in stored.items() if name not in self.used}
        wrong = [(v, stored.get(e.name, e)._replace(dtype=e.dtype)) for v, e in self.misfits.values()]
        if wrong or without or left:
            raise WeightsError(complaints(self.path, wrong, without, left, variables, stored)) from cause
        if cause is not None:
            raise WeightsError(f"{self.path} cannot be loaded; nothing has changed: {cause}") from cause


def _misfit(variable: VariableLike, value: object) -> Entry | None:
    """Returns what a file has for a variable if that cannot be assigned: another shape, or no numbers."""
    if not isinstance(value, StoredTensor):
        return None
    odd = None if has_numbers(value.dtype) else value.dtype
    if odd is None and value.shape == shape_of(variable):
        return None
    return Entry(value.name, value.name, value.shape, odd)


class StoredTensor(np.lib.mixins.NDArrayOperatorsMixin):
    """A tensor that Keras's stores give to layers: read in pieces if it is assigned to a variable, else as an array."""

    def __init__(self, name: str, tensor: Tensor, reading: Reading):
        self.name, self.tensor, self.reading = name, tensor, reading
        self.shape, self.dtype = tensor.shape, tensor.dtype
        self.ndim, self.size = len(self.shape), int(np.prod(self.shape, dtype=np.int64))

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        del copy  # The values are the caller's alone.
        return whole(self.tensor, np.dtype(dtype) if dtype is not None else self.dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: object, **kwargs: object) -> object:
        arrays = [np.asarray(each) if isinstance(each, StoredTensor) else each for each in inputs]
        return getattr(ufunc, method)(*arrays, **kwargs)

    def __jax_array__(self) -> jax.Array:
        return jax.numpy.asarray(np.asarray(self))

    def __getitem__(self, key: Any) -> object:
        return np.asarray(self)[key]

    def __len__(self) -> int:
        return len(np.asarray(self))

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(np.asarray(self), name)


def whole(tensor: Tensor, dtype: np.dtype) -> np.ndarray:
    """Returns all values of a tensor."""
    values = np.empty(tensor.shape, dtype)
    tensor.fill([Piece(tuple((0, length) for length in tensor.shape), values)])
    return values


def place(variable: VariableLike, tensor: Tensor) -> None:
    """Gives a variable the values of a tensor, piece by piece in its layout; it must have one, and their shape."""
    home = home_of(variable)
    assert home is not None
    dtype = np.dtype(jax.dtypes.canonicalize_dtype(jax.numpy.dtype(dtype_of(variable))))
    set_home_value(variable, placed(tensor, home, dtype))
