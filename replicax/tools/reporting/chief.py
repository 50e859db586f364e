"""Which process of a job reports."""

from __future__ import annotations

import jax

from replicax.cluster import detect_cluster
from replicax.contracts.worlds import running


def follows_others() -> bool:
    """Returns whether others have trained before this process, a newcomer or the replacement of a lost worker."""
    # It may be the chief even so, as the first worker is when it comes again; another one may have reported meanwhile.
    worlds = running()
    return worlds is not None and (not worlds.is_taken_in or worlds.incarnation.number > 0)


def is_chief() -> bool:
    """Returns whether this process is the one of its job that reports now."""
    worlds = running()
    if worlds is not None:
        # The first of those that train now; when it is lost, the next one.
        return worlds.is_taken_in and worlds.world.index == 0
    if jax.distributed.is_initialized():
        return jax.process_index() == 0
    # A process without a cluster is its own chief, and so is an evaluator.
    return detect_cluster().config.is_chief  # JAX must not begin to use devices before it is connected.
