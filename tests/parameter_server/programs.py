"""Small programs of workers and servers, written by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from replicax.parameter_server.actors.messages import (
    InputSource,
    PulledVariable,
    SentValue,
    ServerProgram,
    ShardId,
    StepCall,
    WorkerProgram,
)

W, COUNT, OTHER = ShardId(0, 0), ShardId(1, 0), ShardId(2, 0)
FOUR = jax.ShapeDtypeStruct((4,), jnp.float32)
SCALAR = jax.ShapeDtypeStruct((), jnp.float32)


def exported(fn: Callable[..., Any], *shapes: Any) -> bytes:
    """Returns a function as StableHLO."""
    return bytes(jax.export.export(jax.jit(fn, keep_unused=True))(*shapes).serialize())


def descent(number: int = 0) -> ServerProgram:
    """`w -= rate * gradient`, and one more step counted."""

    def apply(updated: list[Any], others: list[Any], sent: list[Any]) -> list[Any]:
        return [updated[0] - others[0] * sent[0], updated[1] + 1]

    code = exported(apply, [FOUR, SCALAR], [SCALAR], [FOUR])
    return ServerProgram(number, code, (W, COUNT), (OTHER,))


def values() -> dict[ShardId, np.ndarray]:
    """What `descent` begins with."""
    return {W: np.ones(4, np.float32), COUNT: np.float32(0), OTHER: np.float32(0.5)}


def worker_program(
    fn: Callable[[list[Any], list[Any]], tuple[list[Any], list[Any]]],
    variables: Sequence[PulledVariable] = (PulledVariable((0,), (W,)),),
    inputs: Sequence[tuple[InputSource, Any]] = (),
    sends: dict[int, tuple[SentValue, ...]] | None = None,
    number: int = 0,
    variable_shapes: Sequence[Any] = (FOUR,),
    batches: dict[int, Sequence[tuple[tuple[int, ...], Any]]] | None = None,
) -> WorkerProgram:
    """A worker's program of `(variables, inputs) -> (results, sent)`, without tables."""
    shapes = [list(variable_shapes), [], [], [shape for _, shape in inputs]]
    code = exported(lambda variables, rows, positions, own: fn(variables, own), *shapes)
    specs = {i: tuple((shape, np.dtype(dtype)) for shape, dtype in arrays) for i, arrays in (batches or {}).items()}
    sources = tuple(source for source, _ in inputs)
    sends = {0: (SentValue(0),)} if sends is None else sends
    return WorkerProgram(number, "step", code, tuple(variables), (), None, sources, specs, sends)


def step(number: int, *arrays: Any, exact: bool = False, at_least: Sequence[int] = (0,), **changes: Any) -> StepCall:
    """A call of program 0 that relies on nothing."""
    fields = {"program": 0, "set_up": 0, "pull": exact, "ahead": not exact} | changes
    return StepCall(number=number, arrays=tuple(map(np.asarray, arrays)), at_least=tuple(at_least), **fields)
