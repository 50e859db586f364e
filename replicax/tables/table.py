"""A table of a layer: its variables, look-ups in it, and the update that follows from their gradients.

The optimizer of the model never sees a table. A look-up is a function with a backward pass of its own, which returns no
gradient of the table but notes those of the rows; when the gradients of the loss are known (`update_rows` of a frame),
the rows that all look-ups of the step have touched are updated once. JAX goes back through a look-up only if what it
computes depends on what is differentiated: so each look-up takes the value of a trainable scalar, and does not use it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

import replicax.context as context
from replicax.contracts.placement import Placement
from replicax.contracts.strategy import StrategyBase, or_null, owner_of
from replicax.contracts.variable_access import array_of, name_of, set_array
from replicax.errors import ProgramError
from replicax.program.ir.jaxprs import marked_as_gradient
from replicax.runtime.mesh import REPLICA_AXIS
from replicax.tables.contents import Deal
from replicax.tables.exchange import Exchange, Route, State
from replicax.tables.row_optimizers import updated_rows
from replicax.tables.specs import TableSpec
from replicax.typing import PyTree
from replicax.variables import check_owner

if TYPE_CHECKING:
    import keras

_T = TypeVar("_T")


class Touched(NamedTuple):
    """The rows that one look-up has touched, from its backward pass."""

    way: Route | jax.Array  # to the rows; on servers the ids
    gradients: jax.Array  # of the row of each id: (ids, columns)


class Table:
    """A table of a layer."""

    def __init__(
        self,
        spec: TableSpec,
        deal: Deal,
        variable: keras.Variable,
        slots: Mapping[str, keras.Variable],
        step: keras.Variable,
        placement: Placement,
        hook: keras.Variable,
        index: keras.Variable | None = None,
    ):
        # The hook is the layer's trainable scalar, which connects look-ups with what is differentiated.
        self._placement, self.hook = placement, hook
        self.last_hook: jax.Array | None = None  # its value at the last update outside of programs
        # The index says which id each row has, in a table that grows.
        self.spec, self.deal, self.step, self.index = spec, deal, step, index
        self.variables: dict[str, keras.Variable] = {"": variable, **slots}  # the rows, and the slots by their names

    def __repr__(self) -> str:
        return f"table {self.spec.name!r}"

    def look_up(self, ids: jax.Array, hook: jax.Array, counts: jax.Array | None = None) -> jax.Array:
        """Returns the rows of ids, shape `(*ids.shape, columns)`; NaN for ids that the table does not have."""
        owner = owner_of(self.variables[""])
        check_owner(owner, context.current().strategy, name_of(self.variables[""]))
        # An id that does not count is padding: it has a row of zeros, and touches no row of the table.
        named = ids if counts is None else jnp.where(counts, ids, self._in_place_of_padding(ids, counts))
        rows = _rows(self, hook, named.reshape(-1), self._read(self.variables[""]))
        rows = rows.reshape(*ids.shape, self.spec.columns)
        return rows if counts is None else jnp.where(counts[..., None], rows, 0)

    def _in_place_of_padding(self, ids: jax.Array, counts: jax.Array) -> jax.Array | int:
        """Returns an id that touches no other row: none on devices; servers get one that is touched anyway."""
        if not self._is_on_servers or not ids.size:
            return self.spec.rows
        return ids.reshape(-1)[jnp.argmax(counts.reshape(-1))]

    def update(self, touched: Sequence[Touched], factor: float) -> None:
        """Makes a step with the gradients of some look-ups, and assigns what it changes."""
        step = self._read(self.step) + 1
        rate = self.spec.optimizer.learning_rate(step)
        state = {name: self._read(variable) for name, variable in self.variables.items()}
        if factor != 1.0:
            touched = [each._replace(gradients=each.gradients * factor) for each in touched]
        new = self._updated_on_servers if self._is_on_servers else self._updated_on_replicas
        for name, value in new(state, touched, step, rate).items():
            self._write(self.variables[name], value)
        self._write(self.step, step)

    def check_applied(self) -> None:
        """Checks outside of any program that the gradients of the update before were applied."""
        hook = array_of(self.hook)
        if isinstance(hook, jax.core.Tracer):
            return
        if self.last_hook is hook:
            raise ProgramError(
                f"The rows of {self!r} would be updated twice: outside of a program, gradients were computed a second "
                "time (or jax.grad was used where the layer is called twice), and no optimizer has applied the first "
                "ones. Add losses up for one rx.value_and_grad, and apply its gradients before the "
                "next; or call the step through rx.function."
            )
        self.last_hook = hook

    def route(self, ids: jax.Array, table: jax.Array) -> tuple[jax.Array, Route | jax.Array]:
        """Returns the rows of ids, and the way to them."""
        if self._is_on_servers:
            return jnp.take(table, ids, axis=0), ids

        def on_replica(ids: jax.Array, table: jax.Array) -> tuple[jax.Array, Route]:
            exchange = self._exchange(ids.shape[0], table)
            route = exchange.route(self.deal.positions_of(ids, exchange.none))
            return exchange.look_up(table, route), route

        rows, route = self._mapped(on_replica)(self._filled(ids, self.spec.rows), table)
        return rows[: ids.shape[0]], route

    def _updated_on_replicas(self, state: State, touched: Sequence[Touched], step: jax.Array, rate: jax.Array) -> State:
        optimizer = self.spec.optimizer

        def on_replica(state: State, touched: Sequence[Touched], step: jax.Array, rate: jax.Array) -> State:
            routes, gradients = [cast(Route, each.way) for each in touched], [each.gradients for each in touched]
            ids = sum(each.shape[0] for each in gradients)
            exchange, route = self._exchange(ids, state[""]), routes[0]
            if len(routes) > 1:
                route = exchange.route(jnp.concatenate([each.distinct[each.number] for each in routes]))
            return exchange.update(state, route, jnp.concatenate(gradients), optimizer, step, rate)

        filled = [each._replace(gradients=self._filled(each.gradients, 0)) for each in touched]
        return self._mapped(on_replica)(state, filled, step, rate)

    def _updated_on_servers(self, state: State, touched: Sequence[Touched], step: jax.Array, rate: jax.Array) -> State:
        """Returns the update as operations on all rows; servers carry out those of the touched rows."""
        table = state[""]
        gradient = jnp.zeros_like(table)
        for each in touched:
            gradient = gradient.at[cast(jax.Array, each.way)].add(each.gradients.astype(table.dtype))
        slots = {name: value for name, value in state.items() if name}
        rows, slots = updated_rows(self.spec.optimizer, table, slots, marked_as_gradient(gradient), step, rate)
        return {"": rows, **slots}

    @property
    def _strategy(self) -> StrategyBase | None:
        return owner_of(self.variables[""])

    @property
    def _is_on_servers(self) -> bool:
        return or_null(self._strategy).is_asynchronous

    @property
    def _is_global(self) -> bool:
        """Whether the rows are split over replicas, all of which the code that runs sees."""
        return self.deal.replicas > 1 and context.current().manual_replicas is None

    def _exchange(self, ids: int, table: jax.Array) -> Exchange:
        replicas = context.current().manual_replicas or self.deal.replicas
        return Exchange.between(ids, table.shape[0], replicas if self.deal.replicas > 1 else 1)

    def _mapped(self, fn: Callable[..., _T]) -> Callable[..., _T]:
        """Returns a function of a replica as one of whatever the code that runs sees."""
        if not self._is_global:
            return fn
        mesh = self._placement.mesh_for(self.deal.replicas)

        def spec(leaf: jax.typing.ArrayLike) -> PartitionSpec:
            return PartitionSpec(REPLICA_AXIS) if jnp.ndim(leaf) else PartitionSpec()

        def mapped(*args: PyTree) -> _T:
            in_specs = jax.tree.map(spec, args)
            on_all = functools.partial(jax.shard_map, mesh=mesh, axis_names={REPLICA_AXIS}, in_specs=in_specs)
            kinds: list[PyTree] = []

            def look(*own: PyTree) -> tuple[()]:
                kinds.append(jax.tree.map(spec, jax.eval_shape(fn, *own)))
                return ()

            jax.eval_shape(on_all(look, out_specs=()), *args)
            found: _T = jax.jit(on_all(fn, out_specs=kinds[0]))(*args)
            return found

        return mapped

    def _filled(self, array: jax.Array, with_what: int) -> jax.Array:
        """Returns an array with as many rows as the replicas divide."""
        missing = -array.shape[0] % self.deal.replicas if self._is_global else 0
        if not missing:
            return array
        return jnp.pad(array, [(0, missing), *[(0, 0)] * (array.ndim - 1)], constant_values=with_what)

    def _read(self, variable: keras.Variable) -> jax.Array:
        frame = context.current().frame
        return array_of(variable) if frame is None else frame.read(variable)

    def _write(self, variable: keras.Variable, value: jax.Array) -> None:
        frame = context.current().frame
        if frame is not None:
            frame.write(variable, value)
            return
        if isinstance(value, jax.core.Tracer):
            raise ProgramError(
                f"The rows of {self!r} would be updated in a function that JAX traces, outside of any program of a "
                "strategy: plain Keras compiles its training step itself. Make the model in a strategy's scope, such "
                "as rx.OneDeviceStrategy(), or call the step through rx.function."
            )
        set_array(variable, value)


class _Pending:
    """The look-ups of a table in one loss, until the gradients are known."""

    def __init__(self, table: Table):
        self._table = table
        self.touched: list[Touched] = []

    def __call__(self, factor: float) -> None:
        self._table.update(self.touched, factor)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _rows(table: Table, hook: jax.Array, ids: jax.Array, value: jax.Array) -> jax.Array:
    del hook
    return table.route(ids, value)[0]


def _forward(
    table: Table, hook: jax.Array, ids: jax.Array, value: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, Route | jax.Array]]:
    rows, way = table.route(ids, value)
    frame = context.current().frame
    if frame is not None and frame.is_of_loss and getattr(getattr(frame, "parent", None), "is_of_loss", False):
        rows = _rows(table, hook, ids, value)  # A loss around this one may depend on the rows, too.
    return rows, (hook, way)


def _backward(
    table: Table, residuals: tuple[jax.Array, Route | jax.Array], gradients: jax.Array
) -> tuple[jax.Array, None, None]:
    hook, way = residuals
    frame, touched = context.current().frame, Touched(way, gradients)
    if frame is None:
        table.check_applied()
        table.update([touched], 1.0)
    elif not frame.is_of_loss:  # A gradient inside of another loss is a part of that loss: no update follows from it.
        cast(_Pending, frame.after_gradients(table, lambda: _Pending(table))).touched.append(touched)
    return jnp.zeros_like(hook) * hook, None, None


_rows.defvjp(_forward, _backward)
