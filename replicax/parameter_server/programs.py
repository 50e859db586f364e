"""From a traced step to the programs of workers and servers, as StableHLO."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.export
import numpy as np

from replicax.errors import ProgramError
from replicax.parameter_server.messages import Piece, Pulled, Sent, ServerProgram, WorkerProgram
from replicax.parameter_server.rows import NotByRowsError, evaluate_rows
from replicax.parameter_server.tracing import Specs, TracedStep
from replicax.parameter_server.variables import Home, home_of
from replicax.program.frames import variable_name
from replicax.program.jaxprs import evaluate, read


@dataclasses.dataclass(frozen=True)
class Programs:
    """A step, ready to be loaded.

    Attributes:
        worker: For every worker.
        servers: For each server that has to do with it.
    """

    worker: WorkerProgram
    servers: dict[int, ServerProgram]


def make_programs(number: int, step: TracedStep, specs: Specs, platforms: Sequence[str]) -> Programs:
    """Returns the programs of a step all of whose variables are placed.

    Args:
        number: Their number.
        step: The step.
        specs: For each iterator, the shapes of its batches.
        platforms: What kinds of devices the workers have.
    """
    halves = {server: _ServerHalf(step, server) for server in _servers(step)}
    servers = {server: half.program(number) for server, half in halves.items()}
    sends = {server: tuple(half.sent) for server, half in halves.items()}
    return Programs(_worker_program(number, step, specs, sends, platforms), servers)


def _servers(step: TracedStep) -> list[int]:
    return sorted({server for variable in step.written for server in home_of(variable).servers})


def _worker_program(
    number: int, step: TracedStep, specs: Specs, sends: dict[int, tuple[Sent, ...]], platforms: Sequence[str]
) -> WorkerProgram:
    split, count = step.split, len(step.variables)
    read_ones = [i for i in split.worker_inputs if i < count]
    invars = split.program.jaxpr.invars

    def worker(variables: list[Any], inputs: list[Any]) -> tuple[list[Any], list[Any]]:
        args: list[Any] = [None] * count + list(inputs)
        for i, value in zip(read_ones, variables, strict=True):
            args[i] = value
        outputs, sent = split.worker(args)
        return outputs[len(step.written) :], sent

    exported = _exported(worker, platforms, _shapes(invars[i] for i in read_ones), _shapes(invars[count:]), step.name)
    pulled = []
    for i in read_ones:
        home = home_of(step.variables[i])
        servers = home.servers[:1] if home.copies else home.servers
        pulled.append(Pulled(servers, home.pieces))
    return WorkerProgram(number, step.name, exported, tuple(pulled), tuple(step.sources), specs, sends)


class _ServerHalf:
    """What one server does in a step.

    Attributes:
        sent: What it gets for that, in order.
    """

    def __init__(self, step: TracedStep, server: int):
        self._step, self._server = step, server
        self.sent: list[Sent] = []
        self._updated: list[Piece] = []
        self._others: dict[Piece, Any] = {}
        self._outputs: list[tuple[int, Piece]] = []
        for i, variable in enumerate(step.written):
            for piece in _pieces_on(home_of(variable), server):
                self._outputs.append((i, piece))
                self._updated.append(piece)
        for i, piece in self._outputs:
            self._note_needs(i, piece)

    def _note_needs(self, output: int, piece: Piece) -> None:
        part = self._step.split.part([output])
        bounds = home_of(self._step.written[output]).bounds[piece.shard]
        for j in part.inputs:
            needed = self._needed_piece(j, output, piece)
            if needed not in self._updated:
                self._others[needed] = self._step.variables[j]
        for result, leaf in part.sent.items():
            rows = bounds if bounds is not None and leaf.aval.shape[:1] == self._rows(output) else None
            if Sent(result, rows) not in self.sent:
                self.sent.append(Sent(result, rows))

    def _rows(self, output: int) -> tuple[int, ...]:
        return tuple(self._step.written[output]._shape[:1])

    def _needed_piece(self, variable: int, output: int, piece: Piece) -> Piece:
        """Returns which part of a variable the update of another one's part reads."""
        home = home_of(self._step.variables[variable])
        if len(home.bounds) == 1:
            return Piece(home.number, 0)
        if home.bounds != home_of(self._step.written[output]).bounds:
            raise _not_by_rows(self._step.written[output], "reads a variable that is cut otherwise")
        return Piece(home.number, piece.shard)

    def program(self, number: int) -> ServerProgram:
        updated = [self._shape(piece) for piece in self._updated]
        others = [self._shape(piece) for piece in self._others]
        sent = [self._sent_shape(each) for each in self.sent]
        code = _exported(self._apply, ["cpu"], updated, others, sent, name=f"{self._step.name}_update")
        return ServerProgram(number, code, tuple(self._updated), tuple(self._others))

    def _apply(self, updated: list[Any], others: list[Any], sent: list[Any]) -> list[Any]:
        state = dict(zip([*self._updated, *self._others], [*updated, *others], strict=True))
        arrived = dict(zip(self.sent, sent, strict=True))
        return [self._new_value(i, piece, state, arrived) for i, piece in self._outputs]

    def _new_value(self, output: int, piece: Piece, state: dict[Piece, Any], arrived: dict[Sent, Any]) -> Any:
        part = self._step.split.part([output])
        variable = self._step.written[output]
        bounds = home_of(variable).bounds[piece.shard]
        values = dict(part.consts)
        by_row = set()
        for j, var in part.inputs.items():
            values[var] = state[self._needed_piece(j, output, piece)]
            if bounds is not None and len(home_of(self._step.variables[j]).bounds) > 1:
                by_row.add(var)
        for result, leaf in part.sent.items():
            rows = bounds if bounds is not None and leaf.aval.shape[:1] == self._rows(output) else None
            values[leaf] = arrived[Sent(result, rows)]
            if rows is not None:
                by_row.add(leaf)
        (outvar,) = part.outvars
        if bounds is None:
            evaluate(part.equations, values, in_place=False)
            return read(outvar, values)
        try:
            evaluate_rows(part.equations, values, by_row, self._rows(output)[0], bounds[1] - bounds[0])
        except NotByRowsError as error:
            raise _not_by_rows(variable, str(error)) from error
        if outvar not in by_row:
            raise _not_by_rows(variable, "computes the new value from no rows at all")
        return read(outvar, values)

    def _shape(self, piece: Piece) -> jax.ShapeDtypeStruct:
        for variable in [*self._step.written, *self._step.variables]:
            home = home_of(variable)
            if home.number == piece.variable:
                bounds, value = home.bounds[piece.shard], variable._value
                shape = value.shape if bounds is None else (bounds[1] - bounds[0], *value.shape[1:])
                return jax.ShapeDtypeStruct(shape, value.dtype)
        raise AssertionError(piece)

    def _sent_shape(self, sent: Sent) -> jax.ShapeDtypeStruct:
        aval = self._step.split.sent[sent.result].aval
        shape = aval.shape if sent.bounds is None else (sent.bounds[1] - sent.bounds[0], *aval.shape[1:])
        return jax.ShapeDtypeStruct(shape, aval.dtype)


def _pieces_on(home: Home, server: int) -> list[Piece]:
    if home.copies:
        return [Piece(home.number, 0)]
    return [piece for piece, where in zip(home.pieces, home.servers, strict=True) if where == server]


def _not_by_rows(variable: Any, why: str) -> ProgramError:
    return ProgramError(
        f"Variable {variable_name(variable)!r} is cut over servers, and each of them updates its own rows, but its "
        f"update {why}. Updates like LAMB's, which need the norm of a whole variable, are possible for variables that "
        "are not cut: make a `variable_partitioner` that returns 1 for this one, or choose another optimizer. "
        "(Clipping by the global norm is no problem: workers do that.)"
    )


def _shapes(variables: Any) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(variable.aval.shape, variable.aval.dtype) for variable in variables]


def _exported(fn: Callable[..., Any], platforms: Sequence[str], *args: Any, name: str = "") -> bytes:
    *shapes, last = args
    if isinstance(last, str):
        name, args = last, tuple(shapes)
    fn.__name__ if hasattr(fn, "__name__") else name
    try:
        exported = jax.export.export(jax.jit(fn, keep_unused=True), platforms=list(platforms))(*args)
    except (NotImplementedError, ValueError) as error:
        raise ProgramError(
            f"{name!r} cannot be sent to other processes as a program: {error} Host callbacks (jax.debug.print, "
            "jax.pure_callback) run in the process that traced them, and cannot be part of a scheduled function."
        ) from error
    return bytes(exported.serialize())


def nbytes(arrays: Sequence[np.ndarray]) -> int:
    """Returns the size of arrays in bytes."""
    return sum(array.nbytes for array in arrays)
