"""The program that is traced around the running code: what it runs under, and which arrays `run` returned in it."""

from __future__ import annotations

import jax

import replicax.context as context
from replicax.contracts.strategy import StrategyBase
from replicax.errors import ContextError
from replicax.program.frames import OverrideFrame, ProgramFrame
from replicax.program.results import mark, marked_with
from replicax.typing import Leaf


def enclosing_program() -> ProgramFrame | None:
    """Returns the program that is being traced around the running code, if there is one."""
    frame = context.current().frame
    while isinstance(frame, OverrideFrame):
        frame = frame.parent
    return frame if isinstance(frame, ProgramFrame) else None


def noted(array: jax.Array, replicas: int) -> jax.Array:
    """Returns `array`, noted as what `strategy.run` returned for so many replicas, or as `COMBINED`."""
    if not isinstance(array, jax.core.Tracer):
        mark(array, replicas)
    elif (program := enclosing_program()) is not None:
        program.counts.note(array, replicas)
    return array


def returned_by(value: Leaf) -> int | None:
    """Returns how many replicas returned `value` from `strategy.run`, `COMBINED`, or None for any other value."""
    if not isinstance(value, jax.core.Tracer):
        return marked_with(value)
    program = enclosing_program()
    return None if program is None else program.counts.of(value)


def agree(program: ProgramFrame, strategy: StrategyBase, count: int | None) -> int:
    """Holds a program to the strategy and the number of replicas of one `run` in it."""
    _hold_to_strategy(program, strategy)
    replicas = count or program.replicas or strategy.num_replicas_in_sync
    if program.replicas is not None and program.replicas != replicas:
        raise ContextError(
            f"All strategy.run calls in one function must use the same replicas, got {program.replicas} and {replicas}."
        )
    program.replicas = replicas
    return replicas


def hold_to_strategy(strategy: StrategyBase) -> None:
    """Holds the program that is being traced, if any, to a strategy: it combines values of its replicas."""
    # Not to a number of replicas: a partial batch lives on fewer devices, and the program runs there.
    program = enclosing_program()
    if program is not None:
        _hold_to_strategy(program, strategy)


def _hold_to_strategy(program: ProgramFrame, strategy: StrategyBase) -> None:
    if program.strategy is not None and program.strategy is not strategy:
        raise ContextError(f"One program can run under one strategy only, got {program.strategy!r} and {strategy!r}.")
    program.strategy = strategy
