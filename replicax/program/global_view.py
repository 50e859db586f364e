"""Programs over global arrays: one computation, which XLA partitions, and in which no replica runs by itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from jax.sharding import Sharding

from replicax.contracts.strategy import StrategyBase
from replicax.contracts.variable_access import VariableLike


@dataclasses.dataclass(frozen=True)
class GlobalView:
    """Makes a function over global arrays a program of a strategy, as the steps of `Model.fit` are."""

    strategy: StrategyBase  # of the program, whichever is current when that is called
    sharding_of: Callable[[VariableLike], Sharding | None]  # at the beginning and the end of the program
    sums_gradients: bool = False  # whether gradients are marked, and the batch is split over the replicas by rows
