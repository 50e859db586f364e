"""From a traced step to the programs of workers and servers, as StableHLO."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.export

from replicax.errors import ProgramError
from replicax.parameter_server.actors.messages import ServerProgram, WorkerProgram
from replicax.parameter_server.compiling.server_half import ServerHalf
from replicax.parameter_server.compiling.traced_step import Specs, TracedStep
from replicax.parameter_server.compiling.worker_half import WorkerHalf
from replicax.parameter_server.variables.remote import home_of


@dataclasses.dataclass(frozen=True)
class ExportedPrograms:
    """A step, ready to be loaded.

    Attributes:
        worker: For every worker.
        servers: For each server that has to do with it.
    """

    worker: WorkerProgram
    servers: dict[int, ServerProgram]


def export_programs(
    number: int, step: TracedStep, specs: Specs, platforms: Sequence[str], lazy_rows: bool = False
) -> ExportedPrograms:
    """Returns the programs of a step all of whose variables are placed.

    Args:
        number: Their number.
        step: The step.
        specs: For each iterator, the shapes and dtypes of its batches.
        platforms: What kinds of devices the workers have.
        lazy_rows: Whether updates leave alone the rows of a table that a step has not looked up.

    Raises:
        ProgramError: The step cannot be sent to other processes, or a cut variable cannot be updated part by part.
    """
    worker = WorkerHalf(step)
    servers = sorted({server for variable in step.written for server in home_of(variable).servers})
    halves = {server: ServerHalf(step, server, worker.tables, lazy_rows) for server in servers}
    made = {}
    for server, half in halves.items():
        code = _exported(step.name, half, ["cpu"], half.shapes())
        made[server] = ServerProgram(number, code, tuple(half.updated), tuple(half.others))
    index_code = None
    if worker.tables:
        index_code = _exported(step.name, worker.indices, platforms, [worker.input_shapes])
    program = WorkerProgram(
        number=number,
        name=step.name,
        code=_exported(step.name, worker, platforms, worker.shapes()),
        variables=worker.pulled(),
        tables=worker.pulled_rows(),
        index_code=index_code,
        inputs=tuple(step.sources),
        specs=dict(specs),
        sends={server: tuple(half.sent) for server, half in halves.items()},
        keeps=tuple(step.keeps),
    )
    return ExportedPrograms(program, made)


def _exported(name: str, half: Callable[..., Any], platforms: Sequence[str], shapes: Sequence[Any]) -> bytes:
    try:
        exported = jax.export.export(jax.jit(lambda *args: half(*args), keep_unused=True), platforms=list(platforms))
        return bytes(exported(*shapes).serialize())
    except (NotImplementedError, ValueError) as error:
        raise ProgramError(
            f"{name!r} cannot be sent to other processes as a program: {error} Host callbacks (jax.debug.print, "
            "jax.pure_callback) run in the process that traced them, and cannot be part of a scheduled function."
        ) from error
