"""Programs over global arrays: one computation, which XLA partitions, and in which no replica runs by itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from jax.sharding import Sharding

from replicax.contracts.strategy import StrategyBase
from replicax.contracts.variable_access import VariableLike


@dataclasses.dataclass(frozen=True)
class GlobalView:
    """Makes a function over global arrays a program of a strategy, as the steps of `Model.fit` are.

    Attributes:
        strategy: The strategy, whichever is current when the program is called.
        sharding_of: Returns where a variable is at the beginning and the end of the program.
        sums_gradients: Whether gradients are marked in the function, whose batch is split over the replicas by rows.
    """

    strategy: StrategyBase
    sharding_of: Callable[[VariableLike], Sharding | None]
    sums_gradients: bool = False
