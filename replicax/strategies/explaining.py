"""The tables of `Strategy.explain`: where variables live, and what a compiled step sends between devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from replicax.compat.jax import is_random_key
from replicax.contracts.placement import MIRRORED, Placement
from replicax.contracts.shown import Shown, html_table, in_columns, joined
from replicax.contracts.strategy import StrategyBase
from replicax.contracts.variable_access import (
    TreeLeaf,
    VariableLike,
    bytes_of,
    is_variable,
    name_of,
    shape_of,
)
from replicax.data import DistributedDataset, DistributedDatasetFromFunction
from replicax.errors import ArgumentError
from replicax.program.function import Function
from replicax.program.pytrees import is_number_like
from replicax.runtime.transfer import beside_device
from replicax.typing import PyTree
from replicax.values.containers import opened


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


def explain(
    strategy: StrategyBase, variables: Any, args: tuple[PyTree, ...], kwargs: dict[str, PyTree], step: PyTree
) -> Shown:
    """Returns the tables of `Strategy.explain`."""
    placement = strategy.placement
    if isinstance(variables, (DistributedDataset, DistributedDatasetFromFunction)):
        return Shown(variables.input_times())
    if isinstance(variables, Function):
        if step is not None:
            raise ArgumentError("`step` goes with a Keras model. An rx.function's arguments follow it: explain(fn, x).")
        found = variables.build(*args, **kwargs)
        compiled = variables.lower(*args, **kwargs).compile()
        return joined(_table(placement, found), _traffic(placement, compiled, _name(variables)))
    if args or kwargs:
        raise ArgumentError("Arguments go with an rx.function, explain(fn, x), and a batch as step=(x, y).")
    is_model = hasattr(variables, "variables")
    if step is not None and step is not False:
        return _explained_step(strategy, variables, step, is_model)
    return _table(placement, _variables_of(strategy, variables) if is_model else variables_in(variables))


def _explained_step(strategy: StrategyBase, model: Any, step: PyTree, is_model: bool) -> Shown:
    if not is_model or getattr(model, "optimizer", None) is None:
        raise ArgumentError(f"`step` goes with a compiled Keras model, got {model!r:.100}. Call model.compile first.")
    from replicax.keras.models import training_program

    program, arrays = training_program(model, None if step is True else step)
    rows, lowered = max((array.shape[0] for array in arrays if array.ndim), default=0), program.lower(arrays)
    table = _table(strategy.placement, _variables_of(strategy, model))
    return joined(table, _traffic(strategy.placement, lowered.compile(), f"a step of fit with {rows} rows"))


def _variables_of(strategy: StrategyBase, model: Any) -> list[VariableLike]:
    if model.variables:
        strategy.check_layouts(model.variables)
    optimizer = getattr(model, "optimizer", None)
    return [*model.variables, *(optimizer.variables if optimizer is not None else ())]


def _table(placement: Placement, variables: Sequence[VariableLike]) -> Shown:
    rows = [_leaf_row(placement, each) if isinstance(each, TreeLeaf) else _row(placement, each) for each in variables]
    if len(rows) <= 1:
        return explanation(rows)
    kind = "arrays" if any(isinstance(each, TreeLeaf) for each in variables) else "variables"
    why = f"of {sum(bytes_of(each, None) for each in variables)} bytes in all" if placement.shards_variables else ""
    held = sum(row.bytes for row in rows)
    return explanation([*rows, Explained("total", f"{len(rows)} {kind}", placement.described_sum, held, why)])


def _traffic(placement: Placement, compiled: jax.stages.Compiled, what: str) -> Shown:
    from replicax.strategies.traffic import traffic  # Reads programs as text, which a step does not.

    return traffic(compiled, what, placement.axis_sizes)


def _row(placement: Placement, variable: VariableLike) -> Explained:
    where, held = placement.described(variable), placement.bytes_held(variable)
    if beside_device(placement.variable_sharding(variable)) is not None:
        where, held = f"{where}, on the host", 0
    return Explained(name_of(variable), str(shape_of(variable)), where, held, placement.rule_of(variable))


def _leaf_row(placement: Placement, leaf: TreeLeaf) -> Explained:
    """Returns the line of an array: where it is, or if it is not on the devices yet, where `replicate` puts it."""
    planned = placement.leaf_sharding(leaf)
    held = leaf.value.sharding if isinstance(leaf.value, jax.Array) else None
    if planned is None:
        return Explained(leaf.name, str(shape_of(leaf)), "as JAX has it", bytes_of(leaf, held))
    where = MIRRORED if planned.is_fully_replicated else placement.described(leaf)
    is_key = placement.shards_variables and is_random_key(leaf.value)
    why = "random keys stay whole" if is_key else placement.rule_of(leaf)
    row = Explained(leaf.name, str(shape_of(leaf)), where, bytes_of(leaf, planned), why)
    if held is None or held.device_set != planned.device_set:
        return row._replace(where=f"{where}, after strategy.replicate")
    if held.is_equivalent_to(planned, len(shape_of(leaf))):
        return row
    found = MIRRORED if held.is_fully_replicated else str(tuple(getattr(held, "spec", ())))
    return row._replace(where=found, bytes=bytes_of(leaf, held), why=f"after strategy.replicate: {where}")


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


def _name(function: Callable[..., object]) -> str:
    return getattr(function, "__name__", "the function")
