"""The tables of `Strategy.explain`: where variables live, and what a compiled step sends between devices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from replicax.errors import ArgumentError
from replicax.placement_like import PlacementLike
from replicax.program.function import Function
from replicax.runtime.transfer import beside_device
from replicax.shown import Shown, html_table, in_columns, joined
from replicax.strategies.showing import Showing
from replicax.typing import PyTree
from replicax.variable_access import VariableLike, dtype_of, is_per_replica_variable, name_of, shape_of

if TYPE_CHECKING:
    import keras

MIRRORED = "mirrored"


class Explained(NamedTuple):
    """A line of the table.

    Attributes:
        name: A variable's path.
        shape: Its shape.
        where: How it is laid out, or where it is.
        bytes: Its bytes on each device.
        why: The rule that decided, where there is one; or empty.
    """

    name: str
    shape: str
    where: str
    bytes: int
    why: str = ""

    @property
    def cells(self) -> tuple[str, ...]:
        """The line's words, in columns."""
        return self.name, self.shape, self.where, f"{self.bytes} bytes", f"({self.why})" if self.why else ""


def explanation(rows: Sequence[Explained]) -> Shown:
    """Returns the lines as text, and as a table for a notebook."""
    headings = ("variable", "shape", "layout", "bytes", "rule")
    has_rules = any(row.why for row in rows)
    html = html_table(headings, rows) if has_rules else html_table(headings[:-1], [row[:-1] for row in rows])
    return Shown(in_columns([row.cells for row in rows]), html)


class Explaining(Showing):
    """A strategy's table of where its variables live."""

    placement: PlacementLike

    def explain(
        self,
        variables: Sequence[VariableLike] | keras.Model | Function[..., Any],
        *args: PyTree,
        step: PyTree = None,
        **kwargs: PyTree,
    ) -> Shown:
        """Returns a table, one line for each variable: its path, shape, layout, bytes on each device, and the rule.

        With several variables the last line has their sum. A notebook shows the table as one. Where a step is compiled
        for it, a second table counts the collectives of the compiled program: how many there are of each kind, over
        which axes of the mesh, and their bytes. One in a loop counts once.

        Args:
            variables: Variables; or a Keras model (whose optimizer's are listed too); or an `rx.function`, of which
                the variables that it uses are listed, and the collectives counted.
            args: The arguments of the `rx.function`, which is traced and compiled for them, and not run.
            step: With a compiled Keras model, a batch of its training, such as `(x, y)`: the collectives of the step
                of `fit` are counted. True for a batch like those that the model has been trained on, with one row for
                each replica.
            kwargs: Keyword arguments of the `rx.function`.

        Raises:
            ArgumentError: `step` is given without a compiled Keras model, or is True before the model was trained; or
                arguments without an `rx.function`.
            LayoutError: A pattern of a user's layouts matches no variable of a model.
        """
        if isinstance(variables, Function):
            if step is not None:
                raise ArgumentError(
                    "`step` goes with a Keras model. An rx.function's arguments follow it: explain(fn, x)."
                )
            found = variables.build(*args, **kwargs)
            compiled = variables.lower(*args, **kwargs).compile()
            return joined(self._table(found), self._traffic(compiled, _name(variables)))
        if args or kwargs:
            raise ArgumentError("Arguments go with an rx.function, explain(fn, x), and a batch as step=(x, y).")
        is_model = hasattr(variables, "variables")
        if step is not None and step is not False:
            return self._explained_step(variables, step, is_model)
        return self._table(self._variables_of(variables) if is_model else variables)

    def _explained_step(self, model: Any, step: PyTree, is_model: bool) -> Shown:
        if not is_model or getattr(model, "optimizer", None) is None:
            raise ArgumentError(
                f"`step` goes with a compiled Keras model, got {model!r:.100}. Call model.compile first."
            )
        from replicax.keras.lowered_steps import lowered_train_step

        lowered, rows = lowered_train_step(model, None if step is True else step)
        table = self._table(self._variables_of(model))
        what = f"a step of fit with {rows} rows"
        return joined(table, self._traffic(lowered.compile(), what))

    def _variables_of(self, model: Any) -> list[VariableLike]:
        optimizer = getattr(model, "optimizer", None)
        return [*model.variables, *(optimizer.variables if optimizer is not None else ())]

    def _table(self, variables: Sequence[VariableLike]) -> Shown:
        rows = [self._explained(variable) for variable in variables]
        if len(rows) <= 1:
            return explanation(rows)
        whole = sum(math.prod(shape_of(each)) * jnp.dtype(dtype_of(each)).itemsize for each in variables)
        total = Explained("total", f"{len(rows)} variables", self._sum_of, sum(row.bytes for row in rows))
        why = f"of {whole} bytes in all" if self._shards else ""
        return explanation([*rows, total._replace(why=why)])

    #: The meaning of the sum of the bytes that `explain` lists.
    _sum_of = "on each device"
    #: Whether a variable may have more bytes than a device has of it.
    _shards = False

    def _traffic(self, compiled: jax.stages.Compiled, what: str) -> Shown:
        from replicax.strategies.traffic import traffic  # Reads programs as text, which a step does not.

        return traffic(compiled, what, self._mesh_sizes())

    def _mesh_sizes(self) -> dict[str, int]:
        mesh = self.placement.mesh_for(self.placement.replicas)
        return dict(zip(mesh.axis_names, mesh.devices.shape, strict=True))

    def _explained(self, variable: VariableLike) -> Explained:
        sharding, shape = self.placement.variable_sharding(variable), shape_of(variable)
        part = shape if sharding is None or is_per_replica_variable(variable) else sharding.shard_shape(shape)
        local = math.prod(part) * jnp.dtype(dtype_of(variable)).itemsize
        where = self._layout_of(variable)
        if beside_device(sharding) is not None:
            where, local = f"{where}, on the host", 0
        return Explained(name_of(variable), str(shape), where, local, self._why(variable))

    def _why(self, variable: VariableLike) -> str:
        """Returns the rule that decided about a variable's layout; empty where the strategy shards none."""
        del variable
        return ""

    def _layout_of(self, variable: VariableLike) -> str:
        sharding = self.placement.variable_sharding(variable)
        if is_per_replica_variable(variable):
            return "one for each replica"
        if sharding is None or sharding.is_fully_replicated:
            return MIRRORED
        assert isinstance(sharding, NamedSharding)
        return str(tuple(sharding.spec))


def _name(function: Callable[..., object]) -> str:
    return getattr(function, "__name__", "the function")
