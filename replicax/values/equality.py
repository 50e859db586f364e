"""Whether a value is equal on all replicas: every decision that depends on it is taken here.

Inside `strategy.run` JAX types each value as varying over the replicas or not. The types are right about data, but not
about control: what a `jax.lax.cond` returns is typed as equal if its branches return equal values, even where the
replicas take different branches. So a decision that goes by the type is noted by the frame of the replica function.
When the function has been traced, the program is searched (`program/ir/divergence.py`), and if a decision was wrong,
the function is traced again with the right one.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol, cast

import jax

import replicax.context as context
from replicax.compat.jax import varying_axes
from replicax.compat.jax_primitives import taken_as_equal_over_axis
from replicax.runtime.mesh import REPLICA_AXIS


@dataclasses.dataclass(frozen=True)
class Difference:
    """Why a value may differ between replicas."""

    # The cause, if it is not simply computed from a replica's own data; ends a sentence that begins with "it".
    reason: str | None = None


OWN_DATA = Difference()


class _ReplicaFrame(Protocol):
    """A frame inside a replica, where decisions are noted."""

    is_of_loss: bool

    def decide(self, value: jax.Array, refused_if_equal: bool) -> tuple[jax.Array, Difference | None]:
        """Decides whether a value may differ between replicas."""


def difference(
    value: jax.Array, refused_if_equal: bool = False, refused_if_different: bool = False
) -> tuple[jax.Array, Difference | None]:
    """Returns a value, typed as varying if it may differ between replicas, and why; None if it is equal on all."""
    varies = REPLICA_AXIS in varying_axes(value)
    # A value may be typed as varying and be equal (what `jax.lax.all_gather` returns, say). If the caller will raise an
    # error where it differs, the first trace goes on as if it were equal.
    if varies and not refused_if_different:
        return value, OWN_DATA
    current = context.current()
    if current.frame is None or current.manual_replicas is None or not isinstance(value, jax.Array):
        return value, OWN_DATA if varies else None
    frame = cast(_ReplicaFrame, current.frame)
    # If the caller will raise an error where the value is equal, the first trace goes on as if it differed, and the
    # error comes when it is known to be equal.
    value, why = (value, None) if current.manual_replicas == 1 else frame.decide(value, refused_if_equal)
    # In a loss what is equal keeps its type: each replica differentiates for itself, so all that is made of the weights
    # is typed as varying there, and a derivative would flow through the change.
    if why is None and varies and not frame.is_of_loss:
        value = taken_as_equal_over_axis(value, REPLICA_AXIS)
    return value, why
