"""The part of a replica's program after the replicas have met: the same on all of them, it needs no replica.

A step ends with the optimizer's update, which is computed from summed gradients and mirrored variables. `jax.shard_map`
would pass each variable of the optimizer in and out, and XLA's partitioner looks at each of them in view of all others:
with some thousand variables that alone takes longer than all the rest of the compilation. So these equations are
evaluated after the map, on whole arrays, and what the map returns for them is the sums as they have travelled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jax.extend import core as jex_core
from jax.sharding import Sharding

from replicax.compat.jax import axes_of_type
from replicax.compat.jax_names import BOUND_TO_PLACE, JIT
from replicax.program.ir.divergence import Divergence
from replicax.program.ir.graph import Graph
from replicax.program.ir.jaxprs import aval_of, is_literal, is_one_of, number_of, programs_in, read, variables_of
from replicax.program.ir.moving import Moved, evaluate_as_one
from replicax.program.replicas.packed_sums import SumTogether, evaluate_joined
from replicax.program.replicas.sharded_variables import (
    ReplicaShard,
    ReplicaSplit,
    ShardedEvaluation,
    own_shard,
    whole_value,
)
from replicax.runtime.mesh import REPLICA_AXIS


class Late:
    """A replica's program in two parts."""

    def __init__(self, program: jex_core.ClosedJaxpr, divergence: Divergence):
        self._outer = program.jaxpr
        [call] = self._outer.eqns  # of a compiled function, see `program/replicas/replica_program.py`
        inner = call.params["jaxpr"]
        self._jaxpr = inner.jaxpr
        self._arguments = list(zip(inner.jaxpr.invars, call.invars, strict=True))
        self._captured = dict(zip(inner.jaxpr.constvars, inner.consts, strict=True))
        returned = dict(zip(call.outvars, inner.jaxpr.outvars, strict=True))
        self._results = [atom if is_literal(atom) else returned.get(atom, atom) for atom in self._outer.outvars]
        differs, used = divergence.values(inner.jaxpr), set[jex_core.Var]()
        self._early, self._late = Graph(inner.jaxpr.eqns).part(lambda each: _may_wait(each, differs), used)
        made_late = {out for equation in self._late for out in equation.outvars}
        # For each result of the program, whether the second part computes it.
        self.is_late = [not is_literal(atom) and atom in made_late for atom in self._results]
        used.update(variables_of(a for a, late in zip(self._results, self.is_late, strict=True) if not late))
        used.update(variables_of([atom for var, atom in self._arguments if var in used]))
        # The positions of the program's constants that the first part reads.
        self.needed = [i for i, var in enumerate(self._outer.constvars) if var in used]
        made_early = {out for equation in self._early for out in equation.outvars}
        read_late = dict.fromkeys(atom for equation in self._late for atom in variables_of(equation.invars))
        self._needed_late = [atom for atom in read_late if atom not in made_late]
        self.sent = [atom for atom in self._needed_late if atom in made_early]  # by the first part to the second

    def early(
        self,
        constants: Mapping[int, Any],  # those of `needed`, by their positions; sharded variables as a `ReplicaShard`
        arrays: Sequence[Any],
        splits: Mapping[tuple[int, ...], ReplicaSplit],  # see `sent_splits`
        sum_together: SumTogether | None = None,  # for small values; None: each is summed by itself
        results: Sequence[ReplicaSplit | None] | None = None,  # how results are sharded over the replicas
    ) -> tuple[list[Any], list[Any]]:
        """Evaluates the first part, inside `shard_map`; returns the results, None for late ones, and `sent`."""
        values = self._known(constants, arrays)
        if splits:
            ShardedEvaluation(splits)(self._early, values)
        elif sum_together is not None:
            evaluate_joined(self._early, values, sum_together)
        else:
            evaluate_as_one(self._jaxpr, self._early, values, [*self._results, *self.sent])
        kept = results or [None] * len(self._results)
        found = [
            None if late else _sent(read(atom, values), split)
            for atom, late, split in zip(self._results, self.is_late, kept, strict=True)
        ]
        shards = zip(self.sent, self.sent_splits(splits), strict=True)
        return found, [_sent(values[var], split) for var, split in shards]

    def sent_splits(self, splits: Mapping[tuple[int, ...], ReplicaSplit]) -> list[ReplicaSplit | None]:
        """Returns how each of `sent` is sharded over the replicas, None where they have all of it."""
        return [splits.get(aval_of(var).shape) for var in self.sent]

    def late(self, constants: Mapping[int, Any], arrays: Sequence[Any], sent: Sequence[Any]) -> list[Any]:
        """Evaluates the second part, outside of `shard_map`, with all constants; returns the late results in order."""
        values = self._known(constants, arrays)
        # JAX has noted with each number the mesh that it was used on.
        values |= {var: number_of(atom) for var, atom in self._arguments if is_literal(atom)}
        values |= zip(self.sent, sent, strict=True)
        results = [atom for atom, late in zip(self._results, self.is_late, strict=True) if late]
        afterwards = Moved("after_the_replicas", self._jaxpr, self._late, self._needed_late, results)
        return afterwards([values[atom] for atom in self._needed_late])

    def _known(self, constants: Mapping[int, Any], arrays: Sequence[Any]) -> dict[Any, Any]:
        values = {self._outer.constvars[i]: value for i, value in constants.items()}
        values |= zip(self._outer.invars, arrays, strict=True)
        values |= {
            var: atom.val if is_literal(atom) else values[atom]
            for var, atom in self._arguments
            if is_literal(atom) or atom in values
        }
        return values | self._captured


def _sent(value: Any, split: ReplicaSplit | None) -> Any:
    if split is None:
        return whole_value(value)
    return value.own() if isinstance(value, ReplicaShard) else own_shard(value, split.dimension)


def _may_wait(equation: Any, differs: Mapping[Any, Any]) -> bool:
    """Returns whether an equation does the same on all replicas, and would do so on whole arrays."""
    values = [*variables_of(equation.invars), *equation.outvars]
    return all(differs.get(value) is None for value in values) and is_global(equation)


def is_global(equation: Any) -> bool:
    """Returns whether nothing in an equation has to do with the replicas' axis, or the outside world."""
    if equation.effects or is_one_of(equation, BOUND_TO_PLACE):
        return False
    if any(REPLICA_AXIS in axes_of_type(atom.aval) for atom in [*equation.invars, *equation.outvars]):
        return False
    if inner := programs_in(equation):  # In others than calls JAX has noted the map's mesh.
        return is_one_of(equation, [JIT]) and all(is_global(each) for jaxpr in inner for each in jaxpr.eqns)
    return not any(isinstance(value, Sharding) for value in equation.params.values())
