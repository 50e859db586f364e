"""`WorkerHalf`: the worker's half of a step, as a function that can be exported."""

from __future__ import annotations

from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax.extend.core import Var

from replicax.contracts.variable_access import dtype_of, shape_of
from replicax.parameter_server.actors.messages import PulledTable, PulledVariable
from replicax.parameter_server.compiling.tables import MIN_BYTES, Table, evaluate_with_tables, find_table, index_program
from replicax.parameter_server.compiling.traced_step import TracedStep
from replicax.parameter_server.variables.remote import home_of
from replicax.program.ir.jaxprs import aval_of
from replicax.tables.marks import grows, is_table as is_marked

_Spec: TypeAlias = jax.ShapeDtypeStruct


class WorkerHalf:
    """The part of a step that a worker runs: `(variables, rows, positions, inputs) -> (results, sent)`."""

    def __init__(self, step: TracedStep):
        self._step, split = step, step.split
        self._count = len(step.variables)
        invars = split.program.jaxpr.invars
        self._own = invars[self._count :]
        self.input_shapes = [_shape(var) for var in self._own]
        self.tables = self._find_tables()  # by their indices among the step's variables
        self._index_vars = list(dict.fromkeys(var for table in self.tables.values() for var in table.indices))
        consts = dict(zip(split.program.jaxpr.constvars, split.program.consts, strict=True))
        self.indices = index_program(split.worker_equations, self._index_vars, self._own, consts)
        # Indices that depend on variables are unknown when the rows are pulled.
        if self.indices is None:
            self.tables, self._index_vars = {}, []
        self._read = [i for i in split.worker_inputs if i < self._count and i not in self.tables]

    def _find_tables(self) -> dict[int, Table]:
        split = self._step.split
        outvars = {atom for atom in split.program.jaxpr.outvars if isinstance(atom, Var)} | set(split.sent)
        found: dict[int, Table] = {}
        for i in split.worker_inputs:
            if i < self._count and not home_of(self._step.variables[i]).copies:
                is_table, gradient = self._gradient_of(i)
                variable = split.program.jaxpr.invars[i]
                least = 0 if is_marked(self._step.variables[i]) else MIN_BYTES
                table = find_table(split.worker_equations, outvars, variable, gradient, least) if is_table else None
                if table is not None:
                    found[i] = table
        return found

    def _gradient_of(self, number: int) -> tuple[bool, Var | None]:
        """Returns whether a variable may be a table, and what is sent for the update of its rows, if anything."""
        split, variable = self._step.split, self._step.variables[number]
        leaves: set[int] = set()
        for j, written in enumerate(self._step.written):
            if written is variable:
                leaves |= {i for i, leaf in split.part(j).sent.items() if aval_of(leaf).shape == shape_of(variable)}
        if len(leaves) != 1:
            return not leaves, None
        (leaf,) = leaves
        # If it is sent for a variable of another shape too, rows alone will not do.
        for j, written in enumerate(self._step.written):
            if leaf in split.part(j).sent and shape_of(written) != shape_of(variable):
                return False, None
        return True, split.sent[leaf]

    def __call__(
        self,
        variables: list[jax.Array],  # those that are pulled completely
        rows: list[jax.Array],  # for each table, those that the batch needs
        positions: list[list[jax.Array]],  # for each table and look-up, of its rows in `rows`
        inputs: list[jax.Array],
    ) -> tuple[list[jax.Array | None], list[jax.Array]]:
        """Returns the results and what is sent."""
        split, invars = self._step.split, self._step.split.program.jaxpr.invars
        values = dict(zip([invars[i] for i in self._read], variables, strict=True))
        values |= dict(zip([invars[i] for i in self.tables], rows, strict=True))
        values |= dict(zip(self._own, inputs, strict=True))
        values |= dict(zip(split.program.jaxpr.constvars, split.program.consts, strict=True))
        tables = list(self.tables.values())
        found = [dict(zip(table.indices, given, strict=True)) for table, given in zip(tables, positions, strict=True)]
        evaluate_with_tables(split.worker_equations, values, tables, [t.capacity for t in tables], found)
        outputs, sent = split.worker_results(values)
        return outputs[len(self._step.written) :], sent

    def shapes(
        self,
    ) -> tuple[list[_Spec], list[_Spec], list[list[_Spec]], list[_Spec]]:
        invars = self._step.split.program.jaxpr.invars
        rows = [
            _Spec((table.capacity, *aval_of(invars[i]).shape[1:]), aval_of(invars[i]).dtype)
            for i, table in self.tables.items()
        ]
        positions = [
            [_Spec(aval_of(index).shape, jnp.int32) for index in table.indices] for table in self.tables.values()
        ]
        return [_shape(invars[i]) for i in self._read], rows, positions, self.input_shapes

    def pulled(self) -> tuple[PulledVariable, ...]:
        """Returns the variables that are pulled completely, with their servers."""
        found = []
        for i in self._read:
            home = home_of(self._step.variables[i])
            found.append(PulledVariable(home.servers[:1] if home.copies else home.servers, home.shards))
        return tuple(found)

    def pulled_rows(self) -> tuple[PulledTable, ...]:
        """Returns the tables of which rows are pulled, with their servers."""
        found = []
        for i, table in self.tables.items():
            variable = self._step.variables[i]
            home, shape = home_of(variable), shape_of(variable)
            bounds = tuple((0, shape[0]) if bounds is None else bounds for bounds in home.bounds)
            numbers = tuple(self._index_vars.index(var) for var in table.indices)
            found.append(
                PulledTable(
                    home.servers, home.shards, bounds, shape, jnp.dtype(dtype_of(variable)), table.capacity, numbers,
                    tuple(table.indices.values()), grows(variable),
                )
            )  # fmt: skip
        return tuple(found)


def _shape(var: Var) -> _Spec:
    aval = aval_of(var)
    return _Spec(aval.shape, aval.dtype)
