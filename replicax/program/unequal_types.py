"""JAX's errors about types that differ only in whether a value may differ between replicas, in plain words.

In a replica function JAX notes with the type of each value whether it may: `float32[]{V:replica}`, or is equal on all
replicas: `float32[]`. Loops, branches and cotangents want equal types, which a program for one device never notices.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from replicax.runtime.mesh import REPLICA_AXIS

_NOTE = (
    f"In strategy.run, a value computed from a replica's own rows ({{V:{REPLICA_AXIS}}} in JAX's types) and one that "
    "is equal on all replicas (a constant, a variable) have different types. JAX wants equal types of what goes into a "
    "loop and comes out of it, of the results of all branches, and of an output and its cotangent. Make the "
    f"one without {{V:{REPLICA_AXIS}}} (a loop's first value, a constant branch, the cotangent) from one of the "
    "replica's own: jnp.full_like(own, value), jnp.zeros_like(own), or value + jnp.zeros_like(own). That runs on one "
    f'device too. A loop may also start from jax.lax.pcast(value, ("{REPLICA_AXIS}",), to="varying"). (What JAX itself '
    "proposes may name no axis, or the wrong branch.)"
)

_TYPE = re.compile(r"\b(?P<of_one>\w+\[[^\]]*\])(?P<varying>\{[^{}]*\})?")


@contextlib.contextmanager
def types_explained() -> Iterator[None]:
    """Adds a note to an error of JAX's that says what to do, if this is what it is about."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if _differ_in_replicas_only(str(error)):
            error.add_note(_NOTE)
        raise


def _differ_in_replicas_only(message: str) -> bool:
    """Returns whether a message names a type both with and without the mark of values that differ between replicas."""
    marked: dict[str, set[bool]] = {}
    for found in _TYPE.finditer(message):
        marked.setdefault(found["of_one"], set()).add(REPLICA_AXIS in (found["varying"] or ""))
    return any(len(marks) == 2 for marks in marked.values())
