"""JAX's errors about an axis that `strategy.run` does not have, in plain words: `jax.pmap` lets users name it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from replicax.compat.jax_errors import unknown_axes
from replicax.errors import ProgramError
from replicax.runtime.mesh import REPLICA_AXIS


@contextlib.contextmanager
def axes_explained() -> Iterator[None]:
    """Says how the axis of the replicas is called.

    Raises:
        ProgramError: A collective asked for another one.
    """
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
