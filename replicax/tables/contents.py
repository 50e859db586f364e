"""Tables as variables: where each row is, and what is written of them to files.

The row of an id is at a *position* of its variable. With several replicas, rows are dealt out in turn: the rows of the
ids 0, 1, 2 ... belong to replicas 0, 1, 2 ..., since frequent ids often follow each other. So the row of id `i` is at
position `(i mod replicas) * rows + i // replicas`, where `rows` is how many each replica has; each has as many, a
multiple of the number of replicas.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Sharding

from replicax.tables.initial_rows import Initializer, NotByRowsError, initial_rows


class Deal(NamedTuple):
    """How the rows of a table are dealt out."""

    rows: int  # of the table
    replicas: int

    @property
    def rows_of_replica(self) -> int:
        """How many rows each replica has, some of them for nothing."""
        return -(-self.rows // self.replicas**2) * self.replicas

    @property
    def positions(self) -> int:
        """How many rows the variable has."""
        return self.rows if self.replicas == 1 else self.replicas * self.rows_of_replica

    def positions_of(self, ids: jax.Array, none: int) -> jax.Array:
        """Returns the positions of ids; as Keras does, it counts negative ids from the end."""
        ids = ids.astype(jnp.int32)
        ids = jnp.where(ids < 0, ids + self.rows, ids)
        positions = (ids % self.replicas) * self.rows_of_replica + ids // self.replicas if self.replicas > 1 else ids
        return jnp.where((ids >= 0) & (ids < self.rows), positions, none)

    def ids(self) -> jax.Array:
        """Returns the ids by their positions, uint32; beyond the end of the table where a position stands for none."""
        positions = jnp.arange(self.positions, dtype=jnp.uint32)
        return positions % self.rows_of_replica * self.replicas + positions // self.rows_of_replica

    def dealt(self, table: jax.Array) -> jax.Array:
        """Returns a table, whose rows are in the order of the ids, in that of the positions."""
        if self.replicas == 1:
            return table
        filled = jnp.pad(table, ((0, self.positions - self.rows), (0, 0)))
        by_turn = filled.reshape(self.rows_of_replica, self.replicas, -1)
        return by_turn.transpose(1, 0, 2).reshape(self.positions, -1)

    def in_order(self, array: jax.Array) -> jax.Array:
        """Returns the rows of a variable in the order of the ids; it is the inverse of `dealt`."""
        if self.replicas == 1:
            return array
        by_replica = array.reshape(self.replicas, self.rows_of_replica, -1)
        return by_replica.transpose(1, 0, 2).reshape(self.positions, -1)[: self.rows]


class DealtInitializer:
    """The initializer of a table's variable: the same numbers as the table's own, dealt out."""

    def __init__(self, initializer: Initializer, deal: Deal, home: Sharding | None, spec: object):
        # `home` is where the variable lives: each device computes its own rows there. None is anywhere.
        self._initializer, self._deal, self._home = initializer, deal, home
        # Servers compute rows themselves: the spec describes them, and the seed says whether they can.
        self.replicax_table, self.seed = spec, getattr(initializer, "seed", 0)

    def __call__(self, shape: Sequence[int], dtype: object = None) -> jax.Array:
        """Returns the first value of the variable."""
        whole = (self._deal.rows, *shape[1:])
        if self._home is None or not isinstance(getattr(self._initializer, "seed", 0), int):
            return self._deal.dealt(jnp.asarray(self._initializer(whole, dtype=dtype)))
        try:
            rows_of = initial_rows(self._initializer, whole, dtype)
        except NotByRowsError:
            rows_of = None

        def made() -> jax.Array:
            if rows_of is None:
                return self._deal.dealt(jnp.asarray(self._initializer(whole, dtype=dtype)))
            ids = self._deal.ids()
            return rows_of(jnp.zeros_like(ids), ids)

        return jax.jit(made, out_shardings=self._home)()
