"""With which strategies an estimator trains and evaluates, and on which cluster."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence

from replicax.cluster import ClusterConfig, ClusterSpec
from replicax.cluster.environment import Environ
from replicax.errors import ArgumentError
from replicax.parameter_server import ParameterServerStrategy
from replicax.ray_cluster.task_counts import told_counts
from replicax.strategies import MultiWorkerMirroredStrategy, Strategy, get_strategy

StrategyOrMaker = Strategy | Callable[[], Strategy]
"""A strategy, or a function or class that makes it where it is needed: an evaluator does not make that of training."""


@dataclasses.dataclass(frozen=True)
class DistributeConfig:
    """The strategies of training and evaluation, and perhaps a cluster of servers that wait elsewhere.

    Attributes:
        train_distribute: The strategy of training, or a function that makes it.
        eval_distribute: The strategy of evaluation, or a function that makes it.
        remote_cluster: The addresses of standard servers (`replicax server`) that train for this process, such as
            `{"worker": ["host1:2222", "host2:2222"]}`; None to train here.

    Raises:
        ArgumentError: A strategy is none.
        ClusterError: `remote_cluster` is malformed.

    Example:
        >>> config = rx.estimator.DistributeConfig(train_distribute=rx.MirroredStrategy())
    """

    train_distribute: StrategyOrMaker | None = None
    eval_distribute: StrategyOrMaker | None = None
    remote_cluster: ClusterSpec | Mapping[str, Sequence[str]] | None = None

    def __post_init__(self) -> None:
        check_strategy("train_distribute", self.train_distribute)
        check_strategy("eval_distribute", self.eval_distribute)
        if self.remote_cluster is not None:
            object.__setattr__(self, "remote_cluster", ClusterSpec(self.remote_cluster, "remote_cluster"))


def check_strategy(name: str, strategy: object) -> None:
    """Checks that an argument is a strategy, something that makes one, or None."""
    if strategy is not None and not isinstance(strategy, Strategy) and not callable(strategy):
        raise ArgumentError(
            f"`{name}` must be a strategy, a function or class that makes one, or None, got {strategy!r:.100}."
        )


def made(name: str, strategy: StrategyOrMaker) -> Strategy:
    """Returns the strategy, which is made now if `strategy` is a function."""
    found = strategy if isinstance(strategy, Strategy) else strategy()
    if not isinstance(found, Strategy):
        raise ArgumentError(f"`{name}` must make a strategy, but it returned {found!r:.100}.")
    return found


def asked_by_roles(cluster: ClusterConfig, environ: Environ | None = None) -> Callable[[], Strategy]:
    """Returns what makes the strategy that the roles of a cluster call for; by default that of the open scope."""
    # `replicax run --ps` sets the number of servers in the environment.
    if "ps" in cluster.spec.jobs or told_counts(os.environ if environ is None else environ) is not None:
        return ParameterServerStrategy
    if cluster.task is not None and cluster.task.type in ("chief", "worker") and cluster.num_processes > 1:
        return MultiWorkerMirroredStrategy
    return get_strategy
