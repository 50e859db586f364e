"""Looking rows up in a table whose rows are split over replicas, and the way back of their gradients.

All of this runs inside `jax.shard_map`, on each replica with its own ids. The row at position `p` of the table belongs
to replica `p // rows` of the axis, where `rows` is how many each has.

1. Each replica sorts its positions and leaves out the repetitions (`Route`).
2. It asks each owner for the rows that it needs (`all_to_all` of row numbers), and gets them (`all_to_all` of rows).
3. Gradients go the other way: each replica sums those of the same row, and sends the sums to the owners. An owner sums
   what it gets for the same row from several replicas, and updates each distinct row once (`update`).

Shapes are fixed when a program is compiled, but not how many of the rows belong to one owner. So there are rounds: in
one a replica sends at most `capacity` row numbers to each owner. That is enough for one round where ids are spread
evenly; if all ids of all replicas belong to one owner, there are more. In a round all replicas send the rows up to the
same bound for each owner, so that a row is updated in one round only: the bound is the lowest at which any replica has
sent `capacity` of them.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from replicax.compat.jax import vary
from replicax.runtime.mesh import REPLICA_AXIS
from replicax.tables.row_optimizers import RowOptimizer, updated_rows

#: The rows of a table, by the name `""`, and of what its optimizer keeps, by the names of the slots.
State = dict[str, jax.Array]


class Window(NamedTuple):
    """The rows that travel in a round."""

    begin: jax.Array  # for each owner, the number of its first row among the distinct positions: (replicas,)
    end: jax.Array  # the number after its last one: (replicas,)
    # The rows that other replicas want of this one, as numbers of its rows: (replicas, capacity). How many rows it has
    # stands for none.
    asked: jax.Array
    is_last: jax.Array  # whether it is the last round; the same on all replicas


class Route(NamedTuple):
    """The way from ids to rows and back."""

    distinct: jax.Array  # the distinct positions, in order, and behind them the number of all positions: (ids,)
    number: jax.Array  # for each id, the number of its position among them: (ids,)
    starts: jax.Array  # for each owner, the number of its first position; then how many there are: (replicas + 1,)
    first: Window  # the first round


def capacity_for(ids: int, replicas: int) -> int:
    """Returns how many rows a replica asks of each owner in one round."""
    # The mean and four standard deviations of the number that one owner of many has, if ids are spread evenly.
    mean = ids / replicas
    return min(ids, math.ceil((mean + 4 * math.sqrt(mean) + 4) / 8) * 8)


@dataclasses.dataclass(frozen=True)
class Exchange:
    """The exchange between replicas that have equally many ids."""

    ids: int  # of each replica
    rows: int  # of the table, in each replica
    replicas: int  # with one, nothing travels
    capacity: int  # how many rows a replica asks of each owner in one round

    @classmethod
    def between(cls, ids: int, rows: int, replicas: int) -> Exchange:
        """Returns an exchange with the capacity for ids that are spread evenly."""
        return cls(ids, rows, replicas, capacity_for(ids, replicas))

    @property
    def none(self) -> int:
        """The position that stands for none."""
        return self.replicas * self.rows

    @property
    def _is_one_round(self) -> bool:
        return self.capacity >= self.ids

    def route(self, positions: jax.Array) -> Route:
        """Finds the way of ids from their positions, int32 of shape `(ids,)`; `replicas * rows` stands for none."""
        distinct, number = distinct_of(positions, self.none)
        owners = jnp.arange(self.replicas + 1, dtype=jnp.int32) * self.rows
        starts = _first_at(distinct, owners)
        return Route(distinct, number, starts, self._window(distinct, starts, starts[:-1]))

    def look_up(self, table: jax.Array, route: Route) -> jax.Array:
        """Returns the rows of the ids, shape `(ids, columns)`; NaN where a position stands for none."""
        rows = self._fetched(table, route, route.first, jnp.full((), jnp.nan, table.dtype))
        if self._is_one_round:
            return rows

        def is_left(state: tuple[Window, jax.Array]) -> jax.Array:
            return jnp.logical_not(state[0].is_last)

        def fetch(state: tuple[Window, jax.Array]) -> tuple[Window, jax.Array]:
            window = self._window(route.distinct, route.starts, state[0].end)
            return window, self._fetched(table, route, window, state[1])

        _, rows = jax.lax.while_loop(is_left, fetch, (route.first, rows))
        return rows

    def update(
        self,
        state: State,
        route: Route,
        gradients: jax.Array,  # for each id: (ids, columns)
        optimizer: RowOptimizer,
        step: jax.Array,
        rate: jax.Array,
    ) -> State:
        """Returns the table and its slots after a step; only rows that some replica has looked up are changed."""

        def updated(state: State, window: Window) -> State:
            slots = self._slot_of_ids(route, window)
            sums = jnp.zeros((self.replicas * self.capacity, gradients.shape[1]), gradients.dtype)
            sums = self._typed(sums).at[slots].add(gradients, mode="drop")
            sent = self._exchanged(sums.reshape(self.replicas, self.capacity, -1))
            return update_rows(state, window.asked.reshape(-1), sent.reshape(sums.shape), optimizer, step, rate)

        state = updated(state, route.first)
        if self._is_one_round:
            return state

        def is_left(carry: tuple[Window, State]) -> jax.Array:
            return jnp.logical_not(carry[0].is_last)

        def next_round(carry: tuple[Window, State]) -> tuple[Window, State]:
            window = self._window(route.distinct, route.starts, carry[0].end)
            return window, updated(carry[1], window)

        _, state = jax.lax.while_loop(is_left, next_round, (route.first, state))
        return state

    def _window(self, distinct: jax.Array, starts: jax.Array, begin: jax.Array) -> Window:
        """Finds the rows of the next round, and tells the owners which they are."""
        owners = jnp.arange(self.replicas, dtype=jnp.int32)
        end, is_last = starts[1:], jnp.asarray(True)
        if not self._is_one_round:
            beyond = begin + self.capacity
            limits = (owners + 1) * self.rows
            bounds = jnp.minimum(distinct.at[beyond].get(mode="fill", fill_value=self.none), limits)
            bounds = jax.lax.pmin(bounds, REPLICA_AXIS)
            end, is_last = _first_at(distinct, bounds), jnp.all(bounds == limits)
        places = begin[:, None] + jnp.arange(self.capacity, dtype=jnp.int32)
        wanted = distinct.at[places].get(mode="fill", fill_value=self.none) - owners[:, None] * self.rows
        wanted = jnp.where(places < end[:, None], wanted, self.rows)
        return Window(begin, end, self._exchanged(wanted), is_last)

    def _fetched(self, table: jax.Array, route: Route, window: Window, before: jax.Array) -> jax.Array:
        """Returns the rows of the ids whose turn it is in a round, and those of `before` for the others."""
        rows = table.at[window.asked].get(mode="fill", fill_value=0)
        rows = self._exchanged(rows).reshape(-1, table.shape[1])
        slots = self._slot_of_ids(route, window)
        found = rows.at[slots].get(mode="fill", fill_value=0)
        return jnp.where((slots < self.replicas * self.capacity)[:, None], found, before)

    def _slot_of_ids(self, route: Route, window: Window) -> jax.Array:
        """Returns for each id its place among the `replicas * capacity` rows of a round; that number if it has none."""
        positions = route.distinct[route.number]
        owner = jnp.minimum(positions // self.rows, self.replicas - 1)
        place = route.number - window.begin[owner]
        is_here = (place >= 0) & (route.number < window.end[owner])
        return jnp.where(is_here, owner * self.capacity + place, self.replicas * self.capacity)

    def _exchanged(self, parts: jax.Array) -> jax.Array:
        """Sends part `i` to replica `i`; returns what the others have sent, by replica."""
        if self.replicas == 1:
            return parts
        return jax.lax.all_to_all(parts, REPLICA_AXIS, split_axis=0, concat_axis=0, tiled=True)

    def _typed(self, value: jax.Array) -> jax.Array:
        return value if self.replicas == 1 else vary(value, REPLICA_AXIS)


def _first_at(ordered: jax.Array, bounds: jax.Array) -> jax.Array:
    """Returns for each bound the number of the first value that is not below it."""
    return (ordered < bounds[:, None]).sum(axis=1, dtype=jnp.int32)


def distinct_of(positions: jax.Array, none: int) -> tuple[jax.Array, jax.Array]:
    """Returns the distinct positions in order, behind them `none`, and for each position its number among them."""
    count = positions.shape[0]
    ordered, origin = jax.lax.sort((positions, jax.lax.iota(jnp.int32, count)), num_keys=1)
    is_new = jnp.concatenate([jnp.zeros(1, jnp.int32), (ordered[1:] != ordered[:-1]).astype(jnp.int32)])[:count]
    numbers = jnp.cumsum(is_new, dtype=jnp.int32)
    distinct = jnp.full_like(positions, none).at[numbers].set(ordered)
    return distinct, jnp.zeros_like(origin).at[origin].set(numbers)


def update_rows(
    state: State, rows: jax.Array, gradients: jax.Array, optimizer: RowOptimizer, step: jax.Array, rate: jax.Array
) -> State:
    """Returns a table and its slots after an update of some rows, each distinct one once with its summed gradient."""
    table = state[""]  # A row may come several times in `rows`; those out of range are left out.
    if optimizer.adds_up:
        changes, _ = updated_rows(optimizer, jnp.zeros_like(gradients), {}, gradients, step, rate)
        return {"": table.at[rows].add(changes.astype(table.dtype), mode="drop")}
    distinct, numbers = distinct_of(rows, table.shape[0])
    sums = jnp.zeros_like(gradients).at[numbers].add(gradients)
    old: dict[str, jax.Array] = {
        name: array.at[distinct].get(mode="fill", fill_value=1, indices_are_sorted=True)
        for name, array in state.items()
    }
    new_rows, new_slots = updated_rows(optimizer, old.pop(""), old, sums, step, rate)
    new = {"": new_rows, **new_slots}
    return {
        name: array.at[distinct].set(new[name], mode="drop", indices_are_sorted=True) for name, array in state.items()
    }
