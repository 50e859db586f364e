"""`export_programs`: compiles a traced step into the programs of workers and servers, as StableHLO."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import jax
import jax.export

from replicax.errors import ProgramError
from replicax.parameter_server.actors.messages import ArraySpecs, ServerProgram, WorkerProgram
from replicax.parameter_server.compiling.server_half import ServerHalf
from replicax.parameter_server.compiling.traced_step import TracedStep
from replicax.parameter_server.compiling.worker_half import WorkerHalf
from replicax.parameter_server.variables.remote import home_of
from replicax.typing import PyTree, PyTreeFunction


@dataclasses.dataclass(frozen=True)
class ExportedPrograms:
    """A step as programs that workers and servers can load."""

    worker: WorkerProgram
    servers: dict[int, ServerProgram]  # of the servers that take part


def export_programs(
    number: int, step: TracedStep, specs: Mapping[int, ArraySpecs], platforms: Sequence[str], lazy_rows: bool = False
) -> ExportedPrograms:
    """Returns the programs of a step all of whose variables are placed, for the `platforms` of the workers' devices."""
    worker = WorkerHalf(step)
    servers = sorted({server for variable in step.written for server in home_of(variable).servers})
    halves = {server: ServerHalf(step, server, worker.tables, lazy_rows) for server in servers}
    programs = {}
    for server, half in halves.items():
        code = _exported(step.name, half, ["cpu"], half.shapes())
        programs[server] = ServerProgram(number, code, tuple(half.updated), tuple(half.others), half.grown())
    index_code = None
    if worker.indices is not None and worker.tables:
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
    return ExportedPrograms(program, programs)


def _exported(name: str, half: PyTreeFunction, platforms: Sequence[str], shapes: Sequence[PyTree]) -> bytes:
    try:
        exported = jax.export.export(jax.jit(lambda *args: half(*args), keep_unused=True), platforms=list(platforms))
        return bytes(exported(*shapes).serialize())
    except (NotImplementedError, ValueError) as error:
        raise ProgramError(
            f"{name!r} cannot be sent to other processes as a program: {error} Host callbacks (jax.debug.print, "
            "jax.pure_callback) run in the process that traced them, and cannot be part of a scheduled function."
        ) from error
