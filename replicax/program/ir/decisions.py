"""Decisions that a replica function's Python takes by whether values are equal on all replicas.

A decision that does not simply go by the type is noted in the traced program: the value passes through JAX's `name`
operation, an identity that is free at run time. `program/ir/divergence.py` finds out which of these values may differ
after all.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax

from replicax.compat.jax import vary
from replicax.program.ir.jaxprs import DECISION
from replicax.runtime.mesh import REPLICA_AXIS
from replicax.values.equality import OWN_DATA, Difference

#: By a decision's number, why its value differs; None: it does not.
Answers = Mapping[int, Difference | None]


class Decisions:
    """The decisions of one trace of a replica function, in their order."""

    def __init__(self, answers: Answers | None = None, differentiates_apart: bool = False):
        # Known from an earlier trace. Any other value is believed to be equal, or what `refused_if_equal` asks for.
        self._answers: Answers = answers or {}
        # Whether in `jax.grad` each replica differentiates for itself, and how often that was called.
        self.differentiates_apart, self.plain_gradients = differentiates_apart, 0
        self.taken: list[Difference | None] = []  # for each, why its value was taken to differ; None: taken to be equal

    def take(self, value: jax.Array, refused_if_equal: bool) -> tuple[jax.Array, Difference | None]:
        """Decides whether a value differs; see `equality.difference`."""
        number = len(self.taken)
        answer = self._answers.get(number, OWN_DATA if refused_if_equal else None)
        self.taken.append(answer)
        value = DECISION(value, number)
        return (value if answer is None else vary(value, REPLICA_AXIS)), answer

    def checked(self, found: Answers) -> Answers | None:
        """Returns the answers that a next trace should be given; None if all decisions were right."""
        # A mark that is not in the traced program was made where JAX traced something for its shapes only.
        right = {i: found.get(i, answer) for i, answer in enumerate(self.taken)}
        wrong = any((right[i] is None) != (answer is None) for i, answer in enumerate(self.taken))
        return right if wrong else None
