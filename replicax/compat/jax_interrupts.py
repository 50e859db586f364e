"""Interrupting computations of several processes that wait for another one, and telling why arrays cannot be read.

JAX's collectives have no time limit, and nothing of JAX's ends one. Those between CPUs (Gloo) use plain sockets, which
another thread can shut down: the program then fails with an error, as it does when the other process dies.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
from jax._src import array as jax_array

from replicax.compat.jax_cliques import _GLOO_KEYS, _listeners
from replicax.compat.jax_processes import _service, collectives_are_gloo

# Gloo's and NCCL's words. Programs that need the results of one that has failed repeat its error.
_OF_COLLECTIVES = re.compile(r"gloo|nccl|collective|connection (closed|reset)|socket closed", re.IGNORECASE)


def collective_ports() -> set[int]:
    """Returns the ports at which the processes' collectives listen, as far as they have been used; none on GPUs."""
    # Waits for the coordination service in process 0; JaxRuntimeError if it is gone. Without the name: no collective is
    # interrupted.
    if not collectives_are_gloo():
        return set()
    return _listeners(dict(_service().key_value_dir_get_bytes(_GLOO_KEYS)).values())


def is_of_lost_collective(error: BaseException | None) -> bool:
    """Returns whether an error, or one that has caused it, says that a collective between processes has failed."""
    while error is not None:
        # JAX makes a ValueError of some errors of a program that it runs at once.
        if isinstance(error, (jax.errors.JaxRuntimeError, ValueError)) and _OF_COLLECTIVES.search(str(error)):
            return True
        error = error.__cause__
    return False


def explain_reads(explain: Callable[[BaseException], None]) -> None:
    """Lets `explain` raise another error where reading an array fails, as `float(loss)` after a lost collective."""
    # Without the names: the error stays JAX's own.
    kind: Any = jax_array.ArrayImpl
    read, wait = kind._value.fget, kind.block_until_ready

    @functools.wraps(read)
    def explained_value(self: jax.Array) -> Any:
        try:
            return read(self)
        except Exception as error:
            explain(error)
            raise

    def block_until_ready(self: jax.Array) -> jax.Array:
        try:
            wait(self)
        except Exception as error:
            explain(error)
            raise
        return self

    kind._value, kind.block_until_ready = property(explained_value), block_until_ready
