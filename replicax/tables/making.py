"""Making the variables of a table, and reading and writing them whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from replicax.contracts.placement import Placement
from replicax.contracts.strategy import StrategyBase
from replicax.contracts.variable_access import array_of, stored_form_of
from replicax.errors import ArgumentError
from replicax.tables.contents import Deal, DealtInitializer
from replicax.tables.growing import FREE_ROW, INDEX_COLUMNS
from replicax.tables.marks import for_index_of, mark_as_table
from replicax.tables.specs import TableSpec
from replicax.tables.table import Table

if TYPE_CHECKING:
    import keras


def make_table(layer: keras.Layer, spec: TableSpec, deal: Deal, strategy: StrategyBase, hook: keras.Variable) -> Table:
    """Makes the variables of a table, weights of a layer; each device computes the first value of its own rows."""
    home = strategy.placement.sharding(stacked=True) if deal.replicas > 1 else None
    initializer = _agreed(spec, strategy)

    def made(name: str, initializer: object) -> keras.Variable:
        variable = layer.add_weight(
            shape=(deal.positions, spec.columns), initializer=initializer, trainable=False, name=name
        )
        mark_as_table(variable, spec)
        if deal.replicas > 1:
            variable.split_rows = True
            variable.stored_form = RowsInOrder(deal, spec.columns, strategy.placement)
        return variable

    import keras

    rows = made(spec.name, DealtInitializer(initializer, deal, home, spec))
    slots = {
        slot.name: made(
            f"{spec.name}_{slot.name}",
            DealtInitializer(keras.initializers.Constant(slot.first_value), deal, home, spec),
        )
        for slot in spec.optimizer.slots
    }
    step = layer.add_weight(shape=(), initializer="zeros", dtype="int32", trainable=False, name=f"{spec.name}_step")
    index = _index(layer, spec, rows, strategy) if spec.grows else None
    return Table(spec, deal, rows, slots, step, strategy.placement, hook, index)


def _index(layer: keras.Layer, spec: TableSpec, rows: keras.Variable, strategy: StrategyBase) -> keras.Variable:
    """Makes the index of a growing table: for each row its id, and when it was used. Servers keep it."""
    import keras

    if not strategy.is_asynchronous:
        raise ArgumentError(
            f"Table {spec.name!r} is a GrowingTable, and only parameter servers give rows to ids as they come. Make "
            "the layer in the scope of a ParameterServerStrategy; elsewhere let rx.keras.hashed_ids hash ids into the "
            "vocabulary of a keras_rs.layers.TableConfig."
        )
    return layer.add_weight(
        shape=(spec.rows, INDEX_COLUMNS),
        initializer=for_index_of(rows, keras.initializers.Constant(FREE_ROW)),
        dtype="int32",
        trainable=False,
        name=f"{spec.name}_index",
    )


def _agreed(spec: TableSpec, strategy: StrategyBase) -> keras.initializers.Initializer:
    """Returns the table's initializer, with process 0's seed where there are several processes."""
    seed = getattr(spec.initializer, "seed", None)
    if not strategy.placement.spans_processes or not isinstance(seed, int):
        return spec.initializer
    given = [np.asarray(part, np.int32) for part in (seed % 2**31, seed // 2**31)]
    low, high = map(np.asarray, strategy.placement.agreed(given, [f"{spec.name} seed"] * 2))
    agreed = int(low) + int(high) * 2**31
    return type(spec.initializer).from_config({**spec.initializer.get_config(), "seed": agreed})


class RowsInOrder:
    """The form of a table in files: its rows in the order of the ids, whatever the number of devices."""

    def __init__(self, deal: Deal, columns: int, placement: Placement):
        self.shape = (deal.rows, columns)
        self._deal, self._placement = deal, placement

    def stored(self, value: jax.Array) -> np.ndarray:
        """Returns the table on the host; where devices belong to several processes, all of them call this together."""
        if not value.is_fully_addressable:
            whole = self._placement.sharding(stacked=False)
            return np.asarray(jax.jit(self._deal.in_order, out_shardings=whole)(value))
        table = np.empty(self.shape, value.dtype)
        for shard in value.addressable_shards:
            first = shard.index[0].start or 0
            self._put(table, np.asarray(shard.data), first)
        return table

    def _put(self, table: np.ndarray, rows: np.ndarray, first: int) -> None:
        """Writes rows from a position on, all of them of one replica or of several whole ones."""
        each = self._deal.rows_of_replica
        for begin in range(0, len(rows), each):
            own = table[(first + begin) // each :: self._deal.replicas]
            own[:] = rows[begin : begin + len(own)]

    def restored(self, stored: jax.typing.ArrayLike) -> jax.Array:
        """Returns the variable's value for a table on the host: each device gets its own rows."""
        table, deal = np.asarray(stored), self._deal
        each = deal.rows_of_replica

        def rows_at(index: tuple[slice, ...] | None) -> np.ndarray:
            first, end, _ = (slice(None) if index is None else index[0]).indices(deal.positions)
            rows = np.zeros((end - first, self.shape[1]), table.dtype)
            for begin in range(0, end - first, each):
                own = table[(first + begin) // each :: deal.replicas]
                rows[begin : begin + len(own)] = own
            return rows

        shape, home = (deal.positions, self.shape[1]), self._placement.sharding(stacked=True)
        return jax.make_array_from_callback(shape, home, rows_at)


def read_table(table: Table, name: str) -> jax.Array:
    """Returns a table, or a slot of it, with its rows in the order of the ids: `(rows, columns)`."""
    variable = table.variables[name]
    form = stored_form_of(variable)  # Where devices belong to several processes, all of them read it together.
    return jnp.asarray(variable.value) if form is None else jnp.asarray(form.stored(array_of(variable)))


def write_table(table: Table, name: str, value: jax.typing.ArrayLike) -> None:
    """Gives a table, or a slot of it, a value of shape `(rows, columns)`; each device gets its own rows."""
    variable, wanted = table.variables[name], (table.spec.rows, table.spec.columns)
    if np.shape(value) != wanted:
        raise ArgumentError(f"{table!r} has the shape {wanted}, the value for it {np.shape(value)}.")
    form = stored_form_of(variable)
    variable.assign(value if form is None else form.restored(np.asarray(value, variable.dtype)))
