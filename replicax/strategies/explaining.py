"""The table of `Strategy.explain`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
from jax.sharding import NamedSharding

from replicax.host import PlacementLike
from replicax.shown import Shown, html_table
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
        why: Why it is so, where it may surprise; or empty.
    """

    name: str
    shape: str
    where: str
    bytes: int
    why: str = ""

    def __str__(self) -> str:
        why = f"  ({self.why})" if self.why else ""
        return f"{self.name}  {self.shape}  {self.where}  {self.bytes} bytes{why}"


def explanation(rows: Sequence[Explained]) -> Shown:
    """Returns the lines as text, and as a table for a notebook."""
    headings = ("variable", "shape", "layout", "bytes", "why")
    if not any(row.why for row in rows):
        return Shown("\n".join(map(str, rows)), html_table(headings[:-1], [row[:-1] for row in rows]))
    return Shown("\n".join(map(str, rows)), html_table(headings, rows))


class Explaining:
    """A strategy's table of where its variables live."""

    placement: PlacementLike

    def explain(self, variables: Sequence[VariableLike] | keras.Model) -> Shown:
        """Returns a table, one line for each variable: its path, shape, layout, bytes on each device, and why it is so.

        The reason is told where it may surprise: why a variable is mirrored by a strategy that shards variables. With
        several variables the last line has their sum. A notebook shows the table as one.

        Args:
            variables: Variables, or a Keras model (whose optimizer's are listed too).
        """
        if hasattr(variables, "variables"):
            optimizer = getattr(variables, "optimizer", None)
            variables = [*variables.variables, *(optimizer.variables if optimizer is not None else ())]
        rows = [self._explained(variable) for variable in variables]
        total = Explained("total", f"{len(rows)} variables", self._sum_of, sum(row.bytes for row in rows))
        return explanation([*rows, total] if len(rows) > 1 else rows)

    #: The meaning of the sum of the bytes that `explain` lists.
    _sum_of = "on each device"

    def _explained(self, variable: VariableLike) -> Explained:
        sharding, shape = self.placement.variable_sharding(variable), shape_of(variable)
        part = shape if sharding is None or is_per_replica_variable(variable) else sharding.shard_shape(shape)
        local = math.prod(part) * jnp.dtype(dtype_of(variable)).itemsize
        where = self._layout_of(variable)
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
