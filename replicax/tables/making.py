"""Making the variables of a table, and reading and writing them whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding

from replicax.errors import ArgumentError
from replicax.host import Host, host_of
from replicax.program import keras_state
from replicax.tables.contents import Deal, DealtInitializer
from replicax.tables.growing import FREE_ROW, INDEX_COLUMNS
from replicax.tables.marks import for_index_of, mark_as_table
from replicax.tables.specs import TableSpec
from replicax.tables.table import Table
from replicax.variable_access import array_of, set_array

if TYPE_CHECKING:
    import keras


def make_table(layer: keras.Layer, spec: TableSpec, deal: Deal, host: Host) -> Table:
    """Makes the variables of a table, weights of a layer; each device computes the first value of its own rows.

    Args:
        layer: The layer.
        spec: Describes the table.
        deal: Where its rows are.
        host: The strategy in whose scope it is made.
    """
    home = host.placement.sharding(stacked=True) if deal.replicas > 1 else None
    initializer = _agreed(spec, host)

    def made(name: str, initializer: object) -> keras.Variable:
        variable = layer.add_weight(
            shape=(deal.positions, spec.columns), initializer=initializer, trainable=False, name=name
        )
        mark_as_table(variable, spec)
        variable.split_rows = deal.replicas > 1
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
    return Table(spec, deal, rows, slots, step, _index(layer, spec, rows, host) if spec.grows else None)


def _index(layer: keras.Layer, spec: TableSpec, rows: keras.Variable, host: Host) -> keras.Variable:
    """Makes the index of a growing table: for each row its id, and when it was used. Servers keep it."""
    import keras

    if not host.is_asynchronous:
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


def _agreed(spec: TableSpec, host: Host) -> keras.initializers.Initializer:
    """Returns the table's initializer, with process 0's seed where there are several processes."""
    seed = getattr(spec.initializer, "seed", None)
    if not host.placement.spans_processes or not isinstance(seed, int):
        return spec.initializer
    given = [np.asarray(part, np.int32) for part in (seed % 2**31, seed // 2**31)]
    low, high = map(np.asarray, host.placement.agreed(given, [f"{spec.name} seed"] * 2))
    agreed = int(low) + int(high) * 2**31
    return type(spec.initializer).from_config({**spec.initializer.get_config(), "seed": agreed})


def read_table(table: Table, name: str) -> jax.Array:
    """Returns a table, or a slot of it, with its rows in the order of the ids: `(rows, columns)`.

    Where devices belong to several processes, all of them call this together.
    """
    variable = table.variables[name]
    if table.deal.replicas == 1:
        return jnp.asarray(variable.value)
    placement = host_of(keras_state.owner_of(variable)).placement
    whole: Sharding | None = placement.sharding(stacked=False) if placement.spans_processes else None
    found: jax.Array = jax.jit(table.deal.in_order, out_shardings=whole)(array_of(variable))
    return found


def write_table(table: Table, name: str, value: np.ndarray) -> None:
    """Gives a table, or a slot of it, a value of shape `(rows, columns)`; each device gets its own rows.

    Raises:
        ArgumentError: The value has another shape.
    """
    variable, wanted = table.variables[name], (table.spec.rows, table.spec.columns)
    if value.shape != wanted:
        raise ArgumentError(f"{table!r} has the shape {wanted}, the value for it {value.shape}.")
    if table.deal.replicas == 1:
        variable.assign(value)
        return
    home = host_of(keras_state.owner_of(variable)).placement.sharding(stacked=True)
    numbers = np.asarray(table.deal.ids()).astype(np.int64)

    def rows_at(index: tuple[slice, ...] | None) -> np.ndarray:
        own = numbers if index is None else numbers[index[0]]
        rows = value[np.minimum(own, table.spec.rows - 1)]
        return np.where((own < table.spec.rows)[:, None], rows, 0).astype(array_of(variable).dtype)

    set_array(variable, jax.make_array_from_callback(tuple(variable.shape), home, rows_at))
