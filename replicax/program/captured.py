"""Arrays of several workers that a function has captured: no process has all of one, to make it a constant."""

from __future__ import annotations

from replicax.compat.jax_errors import captured_array
from replicax.errors import ProgramError


def captured_error(error: BaseException) -> ProgramError | None:
    """Returns what to raise instead of JAX's error about such an array; None for any other error."""
    what = captured_array(error)
    if what is None:
        return None
    told = ProgramError(
        f"A compiled function has captured a value that is spread over several workers ({what}), such as a per-replica "
        "value. No worker has all of it, so it can be no constant of a program. "
        "Pass it as an argument: f(value) for an rx.function, strategy.run(step, args=(value,)) for a step."
    )
    return told.with_traceback(error.__traceback__)
