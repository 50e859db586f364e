"""Gradients of programs over global arrays: the sums over the rows of a batch, made as replicas make them.

The gradient of a weight is a sum over the rows of the batch, which lie on all devices. XLA's partitioner lets each
device sum its own rows, and then sums every gradient on its own and as a whole, also where only a shard is needed
afterwards, since the optimizer's state is sharded. So these sums are written out here: each device computes its part,
the small ones travel in one pack, and a gradient whose shard is needed travels by a reduce-scatter.

For example, the layer `y = x @ w + b`, traced over global arrays:

    dw = transpose(dot(dy, x))      # over all rows
    db = sum(dy)

becomes, on each device with its own rows of `x` and `dy`:

    dw = reduce_scatter(transpose(dot(dy, x)))
    db = all_reduce(sum(dy))

A gradient that is not such a sum (one with a regularizer's part, that of an embedding, one that a loop adds up) is left
to the partitioner, and so is one that depends on another, of a second update in the same step. The sums are the same in
either way, up to their order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex_core
from jax.sharding import Mesh, PartitionSpec

from replicax.collectives.gradient_sums import summed_or_scattered
from replicax.compat.jax_names import LINEAR_IN_ONE
from replicax.program.ir.graph import Graph
from replicax.program.ir.interpreter import evaluate, evaluate_elsewhere
from replicax.program.ir.jaxprs import Values, aval_of, is_gradient, is_literal, is_one_of, read, variables_of
from replicax.program.ir.moving import Moved
from replicax.program.replicas.after_meeting import is_global
from replicax.runtime.mesh import REPLICA_AXIS


class _Gradient(NamedTuple):
    """A gradient that is a sum over rows."""

    mark: jex_core.JaxprEqn
    operands: list[jex_core.Var]  # the values that the sum is made of, with rows first
    equations: list[jex_core.JaxprEqn]  # how it is made of them, in order; they are right for any number of rows


class RowSums:
    """A program in which the gradients that are sums over rows are summed over the devices of a mesh."""

    def __init__(self, program: jex_core.ClosedJaxpr, mesh: Mesh, dimensions: Mapping[tuple[int, ...], int]):
        # By the shapes of gradients of which each device needs a shard only, the sharded dimension.
        self._mesh, self._dimensions = mesh, dimensions
        [self._call] = program.jaxpr.eqns  # of a compiled function, in which gradients are marked
        inner = self._call.params["jaxpr"]
        self._jaxpr, self._consts = inner.jaxpr, inner.consts
        rows = {aval.shape[0] for aval in map(aval_of, program.jaxpr.invars) if aval.shape}
        graph = Graph(self._jaxpr.eqns)
        found = [
            _gradient(equation, graph, {each for each in rows if each % mesh.size == 0})
            for equation in graph.equations
            if is_gradient(equation)
        ]
        self.gradients = _independent([each for each in found if each is not None], graph)

    def evaluate(self, equations: Sequence[jex_core.JaxprEqn], values: Values) -> None:
        """Evaluates the program's one equation, as `interpreter.evaluate` does."""
        [call] = equations
        inputs = [read(atom, values) for atom in call.invars]
        values.update(zip(call.outvars, self._results(inputs), strict=True))

    def _results(self, inputs: Sequence[jax.Array]) -> list[jax.Array]:
        jaxpr = self._jaxpr
        known: Values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*self._consts, *inputs], strict=True))
        marks = [gradient.mark for gradient in self.gradients]
        summed = {mark.outvars[0] for mark in marks}
        results = variables_of(jaxpr.outvars)
        following = Graph(jaxpr.eqns).following(summed)
        after = [each for each in jaxpr.eqns if not following.isdisjoint(variables_of(each.invars))]
        wanted = [atom for equation in after for atom in variables_of(equation.invars)]
        operands = list(dict.fromkeys(var for gradient in self.gradients for var in gradient.operands))
        later = {id(equation) for equation in [*after, *marks]}
        before = [each for each in jaxpr.eqns if id(each) not in later]
        needed, _ = Graph(before).leading_to([*wanted, *results, *operands], and_effects=True)
        evaluate(needed, known)
        known.update(zip([mark.outvars[0] for mark in marks], self._sums(operands, known), strict=True))
        _evaluate_late(jaxpr, after, known, results)
        return [read(atom, known) for atom in jaxpr.outvars]

    def _sums(self, operands: Sequence[jex_core.Var], known: Values) -> Sequence[jax.Array]:
        """Returns the gradients, each summed over all rows."""
        dimensions = [self._dimensions.get(aval_of(each.mark.outvars[0]).shape) for each in self.gradients]

        def of_own_rows(*own: jax.Array) -> list[jax.Array]:
            parts = []
            for gradient in self.gradients:
                values: Values = dict(zip(operands, own, strict=True))
                evaluate_elsewhere(gradient.equations, values)
                parts.append(read(gradient.mark.invars[0], values))
            return summed_or_scattered(parts, dimensions)

        split = PartitionSpec(REPLICA_AXIS)
        sums: list[jax.Array] = jax.shard_map(
            of_own_rows,
            mesh=self._mesh,
            in_specs=(split,) * len(operands),
            out_specs=[_spec(dimension) for dimension in dimensions],
        )(*(known[var] for var in operands))
        return sums


def _gradient(mark: jex_core.JaxprEqn, graph: Graph, rows: set[int]) -> _Gradient | None:
    """Returns the gradient that is marked, if it is made of one sum over rows."""
    equations: list[jex_core.JaxprEqn] = []
    atom = mark.invars[0]
    while not is_literal(atom) and atom in graph.producer:
        equation = graph.producer[atom]
        equations.insert(0, equation)
        if _sums_rows(equation, rows):
            return _Gradient(mark, variables_of(equation.invars), equations)
        if not is_one_of(equation, LINEAR_IN_ONE):
            return None
        atom = equation.invars[0]
    return None


def _independent(gradients: Sequence[_Gradient], graph: Graph) -> list[_Gradient]:
    """Returns the gradients that do not depend on other ones, as those of a second update in the same step do."""
    depending = graph.following(gradient.mark.outvars[0] for gradient in gradients)
    return [gradient for gradient in gradients if depending.isdisjoint(gradient.operands)]


def _sums_rows(equation: jex_core.JaxprEqn, rows: set[int]) -> bool:
    """Returns whether an equation sums over the first dimension of its operands, whose size is one of `rows`."""
    if any(is_literal(atom) or aval_of(atom).shape[:1] not in {(each,) for each in rows} for atom in equation.invars):
        return False
    if not jnp.issubdtype(aval_of(equation.outvars[0]).dtype, np.inexact):
        return False
    rule = _SUMS.get(equation.primitive.name)
    return rule is not None and rule(equation.params)


def _multiplies_rows(params: Mapping[str, Any]) -> bool:
    (left, right), batch = params["dimension_numbers"]
    return not any(map(len, batch)) and (0, 0) in zip(left, right, strict=True)


_SUMS: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    "reduce_sum": lambda params: 0 in params["axes"],
    "dot_general": _multiplies_rows,
}


def _evaluate_late(
    jaxpr: jex_core.Jaxpr, equations: Sequence[jex_core.JaxprEqn], known: Values, results: Sequence[jex_core.Var]
) -> None:
    """Evaluates what follows the sums, mostly the update: as data where that is possible, since it is much."""
    if not all(map(is_global, equations)):
        evaluate(equations, known)
        return
    inputs = list(dict.fromkeys(a for each in equations for a in variables_of(each.invars) if a in known))
    made = {out for equation in equations for out in equation.outvars}
    outputs = list(dict.fromkeys(atom for atom in results if atom in made))
    moved = Moved("after_the_gradients", jaxpr, equations, inputs, outputs)
    known.update(zip(outputs, moved([known[var] for var in inputs]), strict=True))


def _spec(dimension: int | None) -> PartitionSpec:
    return PartitionSpec() if dimension is None else PartitionSpec(*(None,) * dimension, REPLICA_AXIS)
