"""Which process of a job reports."""

from __future__ import annotations

import jax

from replicax.cluster import detect_cluster
from replicax.contracts.worlds import running


def follows_others() -> bool:
    """Returns whether others have trained before this process: it is a newcomer, or the replacement of a lost worker.

    If it is the chief, as the first worker is when it comes again, another one may have reported meanwhile.
    """
    worlds = running()
    return worlds is not None and (not worlds.is_taken_in or worlds.incarnation.number > 0)


def is_chief() -> bool:
    """Returns whether this process is the one of its job that reports now.

    Where workers come and go it is the first of those that train; another one, when that is lost. A worker that has not
    joined the others reports nothing. A process without a cluster is its own chief, and so is an evaluator.
    """
    worlds = running()
    if worlds is not None:
        return worlds.is_taken_in and worlds.world.index == 0
    if jax.distributed.is_initialized():
        return jax.process_index() == 0
    return detect_cluster().config.is_chief  # JAX must not begin to use devices before it is connected.
