"""JAX's errors about types that differ only in whether a value may differ between replicas, in plain words.

In a replica function JAX notes with the type of each value whether it may: `float32[]{V:replica}`, or is equal on all
replicas: `float32[]`. Some operations want equal types, which a program for one device never notices. Loops and
branches are helped (`program/replicas/control_flow.py`); the cotangent of an output is not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from replicax.compat.jax_errors import differ_in_axis_only, unknown_axes
from replicax.errors import ProgramError
from replicax.runtime.mesh import REPLICA_AXIS

_NOTE = (
    f"In strategy.run, a value computed from a replica's own rows ({{V:{REPLICA_AXIS}}} in JAX's types) and one that "
    "is equal on all replicas (a constant, a variable) have different types. Loops and branches may mix them (call "
    "them as jax.lax.scan, jax.lax.cond, ...; a name that was imported from jax.lax cannot), but "
    f"JAX wants an output and its cotangent to be alike. Make the one without {{V:{REPLICA_AXIS}}} from one of the "
    "replica's own: jnp.full_like(own, value), jnp.zeros_like(own), or value + jnp.zeros_like(own). That runs on one "
    "device too. (What JAX itself proposes may name no axis, or the wrong branch.)"
)


@contextlib.contextmanager
def types_explained() -> Iterator[None]:
    """Adds a note to an error of JAX's that says what to do, if this is what it is about."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if differ_in_axis_only(str(error), REPLICA_AXIS):
            error.add_note(_NOTE)
        raise


# JAX's errors about an axis that `strategy.run` does not have, in plain words: `jax.pmap` lets users name it.


@contextlib.contextmanager
def axes_explained() -> Iterator[None]:
    """Raises an error that names the axis of the replicas where a collective asks for another one."""
    try:
        yield
    except (NameError, AssertionError) as error:
        names = unknown_axes(error)
        if not names:
            raise
        raise ProgramError(
            f"There is no axis {', '.join(map(repr, names))} here: the axis of the replicas is called {REPLICA_AXIS!r} "
            f"in strategy.run. Write jax.lax.psum(x, {REPLICA_AXIS!r}), or "
            "rx.get_replica_context().all_reduce('sum', x). Gradients need neither: those with respect to what is "
            "equal on all replicas are summed over them already, so divide the loss by the global number of rows."
        ) from error
