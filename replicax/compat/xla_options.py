"""Options of XLA's compiler, by the names that it has for them."""

from __future__ import annotations

import functools
import os

import jax

_PASSES = {"xla_disable_hlo_passes": "cpu-all-reduce-combiner,cse_barrier_expander"}
_SCHEDULER = {"xla_cpu_enable_concurrency_optimized_scheduler": True}


def overlaps() -> bool:
    """Returns whether communication between CPU processes is to begin during the backward pass: `REPLICAX_OVERLAP=1`.

    It is not the default yet. It asks for a thread of XLA that waits for the wire: `NPROC=3` on a host of one core.
    """
    return os.environ.get("REPLICAX_OVERLAP", "") == "1"


@functools.cache
def options_between_cpu_processes() -> dict[str, bool | int | float | str]:
    """Returns the compiler's options for a program of CPU devices in several processes.

    Two passes are left out. One joins all sums of a program into one, which begins when the last gradient is there, so
    that nothing travels during the backward pass; with Gloo joined sums are still made one by one, so joining saves
    nothing. The other one removes optimization barriers before the program is scheduled, and they are what says in
    which order sums leave. XLA's other scheduler puts a sum where its operand is there: with the one that saves memory
    the result of a sum takes the place of values that the backward pass still needs, and waits for it.

    An XLA that does not know an option refuses it; it passes over names of passes that it does not know. Without the
    names: the same numbers, and communication that begins after the backward pass.
    """
    return {**_PASSES, **(_SCHEDULER if _is_known(_SCHEDULER) else {})}


def _is_known(options: dict[str, bool]) -> bool:
    """Returns whether XLA takes these options; a program of one constant says so."""
    program = jax.jit(lambda: 0, compiler_options=options)
    try:
        program.lower().compile()
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        if "option" not in str(error).lower():
            raise
        return False
    return True
