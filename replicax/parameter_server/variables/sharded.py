"""`ShardedVariable`: a variable that is sharded over servers along its first dimension."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, SupportsIndex, TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np

import replicax.context as context
from replicax.contracts.variable_access import name_of, shape_of
from replicax.errors import VariableError
from replicax.parameter_server.variables.remote import RemoteVariable, home_of
from replicax.values.array_like import check_index
from replicax.values.scattering import Entries, Scattered, scattered

#: One dimension's index, as NumPy takes it.
Index: TypeAlias = int | slice | EllipsisType | Sequence[int] | np.ndarray | jax.Array | None


class ShardedVariable(RemoteVariable, Scattered):
    """A variable, Keras's or ours, that a partitioner has sharded; the scope of the strategy makes it.

    It reads and is saved as one variable. Outside of scheduled functions an index reads only the rows that it names,
    from the servers that have them. In a scheduled function a look-up (`jax.numpy.take`, an embedding layer,
    `variable.value[ids]`) does so. Its scatter methods are those of `rx.Variable`; in a scheduled function each server
    changes the rows that it has.

    Example:
        >>> import numpy as np
        >>> strategy = rx.ParameterServerStrategy(variable_partitioner=rx.FixedShardsPartitioner(2))  # doctest: +SKIP
        >>> with strategy.scope():  # doctest: +SKIP
        ...     table = rx.Variable(np.zeros((10, 4), np.float32))
        >>> isinstance(table, rx.ShardedVariable), len(table.variables)  # doctest: +SKIP
    """

    __slots__ = ()
    if TYPE_CHECKING:  # Attributes of the variable's own class, into which this one is mixed.
        name: str
        dtype: object
        value: jax.Array

        def assign(self, value: object) -> jax.Array: ...

    @property
    def shards(self) -> tuple[Shard, ...]:
        """Its shards, in order."""
        home = home_of(self)
        servers = home.servers or (None,) * len(home.bounds)
        return tuple(Shard(self, i, servers[i], bounds) for i, bounds in enumerate(home.bounds) if bounds is not None)

    @property
    def variables(self) -> list[Shard]:
        """Its shards; tf.distribute's name for them."""
        return list(self.shards)

    def __getitem__(self, index: Index | tuple[Index, ...]) -> jax.Array:
        """Returns entries as NumPy's indexing does; of the first dimension only what is named is fetched."""
        home = home_of(self)
        shape = shape_of(self)
        check_index(index, shape)
        if context.current().frame is not None or home.changed or not home.servers:
            return self.value[index]
        first, *rest = index if isinstance(index, tuple) else (index,)
        if isinstance(first, jax.Array):
            first = np.asarray(first)
        if first is Ellipsis or first is None or (isinstance(first, np.ndarray) and first.ndim > 1):
            return self.value[index]
        count = shape[0]
        if not isinstance(first, slice) and np.ndim(first) == 0:
            first = operator.index(cast(SupportsIndex, first))
        rows = np.arange(count)[first]
        found = self.sparse_read(np.atleast_1d(rows))
        return found[(0, *rest)] if np.ndim(rows) == 0 else found[(slice(None), *rest)]

    def _scatter(self, op: str, entries: Entries) -> jax.Array:
        return self.assign(scattered(op, self.value, entries))

    def sparse_read(self, indices: jax.typing.ArrayLike | Sequence[int]) -> jax.Array:
        """Returns rows by their indices, shape `(len(indices), ...)`; nothing else is fetched.

        Raises:
            VariableError: `indices` is no list of row indices, or one of them is out of range.
        """
        rows, count = np.asarray(indices), shape_of(self)[0]
        if rows.ndim != 1 or not np.issubdtype(rows.dtype, np.integer) or ((rows < 0) | (rows >= count)).any():
            raise VariableError(
                f"Rows of {name_of(self)!r} are read by a list of indices from 0 to {count - 1}, got {indices!r:.100}."
            )
        home = home_of(self)
        return jnp.asarray(home.fetch_rows(rows)) if home.servers and not home.changed else self.value[rows]


@dataclasses.dataclass(frozen=True)
class Shard:
    """One shard of a variable."""

    whole: ShardedVariable
    number: int
    server: int | None  # None while only the coordinator has the value
    bounds: tuple[int, int]  # its first row, and the one after its last

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.bounds[1] - self.bounds[0], *shape_of(self.whole)[1:])

    @property
    def dtype(self) -> object:
        return self.whole.dtype

    def numpy(self) -> np.ndarray:
        """Returns the shard's value."""
        return np.asarray(self.whole[slice(*self.bounds)])
