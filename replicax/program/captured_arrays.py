"""Arrays that a function has captured, and that can be no constants of its program."""

from __future__ import annotations

from replicax.compat.jax_errors import captured_array, is_about_array_on_mesh
from replicax.errors import ProgramError

_ON_THE_DEVICES = (
    "A step has captured an array that is on the strategy's devices (from strategy.replicate, or what strategy.run has "
    "returned), and computes with it alone. Inside strategy.run JAX takes no such array but as an argument. "
    "Pass it: strategy.run(step, args=(array, batch)); or keep it in an rx.Variable."
)


def captured_error(error: BaseException) -> ProgramError | None:
    """Returns what to raise instead of JAX's error about such an array; None for any other error."""
    if is_about_array_on_mesh(error):
        return ProgramError(_ON_THE_DEVICES).with_traceback(error.__traceback__)
    what = captured_array(error)
    if what is None:
        return None
    told = ProgramError(
        f"A compiled function has captured a value that is spread over several workers ({what}), such as a per-replica "
        "value. No worker has all of it, so it can be no constant of a program. "
        "Pass it as an argument: f(value) for an rx.function, strategy.run(step, args=(value,)) for a step."
    )
    return told.with_traceback(error.__traceback__)
