"""`ShardedVariable`: a variable that is cut along its first dimension, its parts on different servers."""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import replicax.context as context
from replicax.array_like import check_index
from replicax.errors import VariableError
from replicax.parameter_server.variables.remote import RemoteVariable, home_of
from replicax.scattering import Entries, Scattered, scattered
from replicax.variable_access import name_of, shape_of


class ShardedVariable(RemoteVariable, Scattered):
    """What variables are that a partitioner has cut, Keras's and ours; made by the scope of the strategy.

    It reads as the whole variable does, and is saved as one. Outside of scheduled functions an index reads only the
    rows that it names, from the servers that have them; in a scheduled function a look-up (`jax.numpy.take`, an
    embedding layer, `variable.value[ids]`) does. Its scatter methods are those of `rx.Variable`; in a scheduled
    function each server changes the rows that it has.
    """

    __slots__ = ()

    @property
    def shards(self) -> tuple[Shard, ...]:
        """Its parts, in order."""
        home = home_of(self)
        servers = home.servers or (None,) * len(home.bounds)
        return tuple(Shard(self, i, servers[i], bounds) for i, bounds in enumerate(home.bounds) if bounds is not None)

    @property
    def variables(self) -> list[Shard]:
        """Its parts; tf.distribute's name for them."""
        return list(self.shards)

    def __getitem__(self, index: Any) -> Any:
        """Returns entries as NumPy's indexing does; of the first dimension only what is named is fetched.

        Raises:
            IndexError: A row is out of range.
        """
        home = home_of(self)
        shape = shape_of(self)  # type: ignore[arg-type]  # a mix-in: the class beside it is a variable
        check_index(index, shape)
        if context.current().frame is not None or home.changed or not home.servers:
            return self.value[index]  # type: ignore[attr-defined]
        first, *rest = index if isinstance(index, tuple) else (index,)
        if isinstance(first, jax.Array):
            first = np.asarray(first)
        if first is Ellipsis or first is None or (isinstance(first, np.ndarray) and first.ndim > 1):
            return self.value[index]  # type: ignore[attr-defined]
        count = shape[0]
        if np.ndim(first) == 0 and not isinstance(first, slice):
            first = operator.index(first)
        rows = np.arange(count)[first]
        found = self.sparse_read(np.atleast_1d(rows))
        return found[(0, *rest)] if np.ndim(rows) == 0 else found[(slice(None), *rest)]

    def _scatter(self, op: str, entries: Entries) -> Any:
        return self.assign(scattered(op, self.value, entries))  # type: ignore[attr-defined]

    def sparse_read(self, indices: Any) -> Any:
        """Returns rows by their numbers, shape `(len(indices), ...)`; nothing else is fetched.

        Raises:
            VariableError: `indices` is no list of row numbers, or one of them is out of range.
        """
        rows, count = np.asarray(indices), shape_of(self)[0]  # type: ignore[arg-type]
        if rows.ndim != 1 or not np.issubdtype(rows.dtype, np.integer) or ((rows < 0) | (rows >= count)).any():
            raise VariableError(
                f"Rows of {name_of(self)!r} are read by a list of numbers from 0 to {count - 1}, got "  # type: ignore[arg-type]
                f"{indices!r:.100}."
            )
        home = home_of(self)
        return jnp.asarray(home.fetch_rows(rows)) if home.servers and not home.changed else self.value[rows]  # type: ignore[attr-defined]


@dataclasses.dataclass(frozen=True)
class Shard:
    """A part of a variable.

    Attributes:
        whole: The variable.
        number: Which of its parts.
        server: Which server has it; None while none does.
        bounds: Its first row, and the one after its last.
    """

    whole: Any
    number: int
    server: int | None
    bounds: tuple[int, int]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the part."""
        return (self.bounds[1] - self.bounds[0], *shape_of(self.whole)[1:])

    @property
    def dtype(self) -> Any:
        """Dtype of the variable."""
        return self.whole.dtype

    def numpy(self) -> np.ndarray:
        """Returns the part's value."""
        return np.asarray(self.whole[slice(*self.bounds)])
