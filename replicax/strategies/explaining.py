"""The tables of `Strategy.explain`: where variables live, and what a compiled step sends between devices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, Sharding

from replicax.compat.jax import is_random_key
from replicax.contracts.placement import PlacementLike
from replicax.contracts.shown import Shown, html_table, in_columns, joined
from replicax.contracts.variable_access import (
    TreeLeaf,
    VariableLike,
    dtype_of,
    is_per_replica_variable,
    is_variable,
    name_of,
    shape_of,
)
from replicax.errors import ArgumentError
from replicax.program.function import Function
from replicax.program.pytrees import is_number_like
from replicax.runtime.transfer import beside_device
from replicax.typing import PyTree
from replicax.values.containers import opened

if TYPE_CHECKING:
    import keras

MIRRORED = "mirrored"


class Explained(NamedTuple):
    """A line of the table: a variable."""

    name: str
    shape: str
    where: str  # how it is laid out, or where it is
    bytes: int  # on each device
    why: str = ""  # the rule that decided, where there is one

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


class Explaining:
    """A strategy's table of where its variables live."""

    placement: PlacementLike

    def explain(
        self,
        variables: Sequence[VariableLike] | keras.Model | Function[..., Any] | PyTree,
        *args: PyTree,
        step: PyTree = None,
        **kwargs: PyTree,
    ) -> Shown:
        """Returns a table, one line for each variable: its path, shape, layout, bytes on each device, and the rule.

        An array in a pytree, such as a state that `replicate` has placed, has a line as well.

        With several variables the last line has their sum. A notebook shows the table as one. Where a step is compiled
        for it, a second table counts the collectives of the compiled program: how many there are of each kind, over
        which axes of the mesh, and their bytes. One in a loop counts once.

        Args:
            variables: Variables; or a Keras model (whose optimizer's are listed too); or an `rx.function`, of which
                the variables that it uses are listed, and the collectives counted; or a pytree of arrays and variables.
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
        return self._table(self._variables_of(variables) if is_model else variables_in(variables))

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
        rows = [
            self._explained_leaf(each) if isinstance(each, TreeLeaf) else self._explained(each) for each in variables
        ]
        if len(rows) <= 1:
            return explanation(rows)
        kind = "arrays" if any(isinstance(each, TreeLeaf) for each in variables) else "variables"
        whole = sum(_bytes(each, None) for each in variables)
        total = Explained("total", f"{len(rows)} {kind}", self._sum_of, sum(row.bytes for row in rows))
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
        local = _bytes(variable, None if is_per_replica_variable(variable) else sharding)
        where = self._layout_of(variable)
        if beside_device(sharding) is not None:
            where, local = f"{where}, on the host", 0
        return Explained(name_of(variable), str(shape), where, local, self._why(variable))

    def _explained_leaf(self, leaf: TreeLeaf) -> Explained:
        """Returns the line of an array: where it is, or if it is not on the devices yet, where `replicate` puts it."""
        planned = self.placement.leaf_sharding(leaf)
        held = leaf.value.sharding if isinstance(leaf.value, jax.Array) else None
        if planned is None:
            return Explained(leaf.name, str(shape_of(leaf)), "as JAX has it", _bytes(leaf, held))
        is_whole = planned.is_fully_replicated
        where = MIRRORED if is_whole else self._layout_of(leaf)
        why = "" if not self._shards else "random keys stay whole" if is_random_key(leaf.value) else self._why(leaf)
        row = Explained(leaf.name, str(shape_of(leaf)), where, _bytes(leaf, planned), why)
        if held is None or held.device_set != planned.device_set:
            return row._replace(where=f"{where}, after strategy.replicate")
        if held.is_equivalent_to(planned, len(shape_of(leaf))):
            return row
        found = MIRRORED if held.is_fully_replicated else str(tuple(getattr(held, "spec", ())))
        return row._replace(where=found, bytes=_bytes(leaf, held), why=f"after strategy.replicate: {where}")

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


def leaf_name(path: Sequence[Any]) -> str:
    """Returns the name of a leaf of a pytree: the keys that lead to it."""
    return jax.tree_util.keystr(tuple(path), simple=True, separator="/") or "value"


def variables_in(tree: PyTree) -> list[VariableLike]:
    """Returns the variables in a pytree, and its arrays and numbers as leaves with names."""
    paths, _ = jax.tree_util.tree_flatten_with_path(opened(tree), is_leaf=is_variable)
    wrong = [leaf for _, leaf in paths if not is_variable(leaf) and not is_number_like(leaf)]
    if wrong:
        raise ArgumentError(f"Variables, arrays and numbers can be explained, got {wrong[0]!r:.100}.")
    return [leaf if is_variable(leaf) else TreeLeaf(leaf_name(path), leaf) for path, leaf in paths]


def _bytes(variable: VariableLike, sharding: Sharding | None) -> int:
    """Returns the bytes that a device holds of a variable."""
    shape = shape_of(variable)
    part = shape if sharding is None else sharding.shard_shape(shape)
    dtype = dtype_of(variable) if isinstance(variable, TreeLeaf) else jnp.dtype(dtype_of(variable))
    return math.prod(part) * int(dtype.itemsize)  # type: ignore[union-attr]  # a dtype, NumPy's or of random keys


def _name(function: Callable[..., object]) -> str:
    return getattr(function, "__name__", "the function")
