"""Elastic training: a strategy whose workers may be lost and come again while it trains."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import jax

from replicax.checks import is_int
from replicax.checks.environment_names import ELASTIC
from replicax.cluster import ClusterResolver, cluster_of
from replicax.contracts.variable_access import VariableLike
from replicax.errors import ArgumentError
from replicax.group.health import stall_timeout_from
from replicax.runtime.memory import keep_freed_memory
from replicax.runtime.mesh import forget_meshes
from replicax.strategies.placement import Placement
from replicax.strategies.workers import SpansWorkers
from replicax.typing import PyTree

if TYPE_CHECKING:  # Loaded where they are needed only.
    from replicax.checkpoint import Checkpoint
    from replicax.strategies.elastic_variables import Followers


@dataclasses.dataclass(frozen=True)
class Elastic:
    """Lets workers be lost, and others join, while the rest go on in the same processes.

    Args:
        min_workers: With how few workers the training goes on. With fewer it ends, to be started again.
        max_workers: How many workers there may be; None for as many as the cluster has at the start.

    Raises:
        ArgumentError: They are no numbers of workers.

    Example:
        >>> Elastic(min_workers=2, max_workers=8)
        Elastic(min_workers=2, max_workers=8)
    """

    min_workers: int = 1
    max_workers: int | None = None

    def __post_init__(self) -> None:
        if not is_int(self.min_workers) or self.min_workers < 1:
            raise ArgumentError(f"min_workers must be a number of workers, at least 1, got {self.min_workers!r}.")
        if self.max_workers is not None and (not is_int(self.max_workers) or self.max_workers < self.min_workers):
            raise ArgumentError(
                f"max_workers must be a number of workers, at least min_workers={self.min_workers}, got "
                f"{self.max_workers!r}."
            )


def elastic_from(given: Elastic | None, environ: Mapping[str, str] = os.environ) -> Elastic | None:
    """Returns the user's setting; if there is none, that of the environment; None for neither."""
    if given is not None:
        if not isinstance(given, Elastic):
            raise ArgumentError(f"`elastic` must be an rx.Elastic, got {given!r:.100}.")
        return given
    if not environ.get(ELASTIC, "").strip():
        return None
    from replicax.group.membership.launcher_news import elastic_range

    told = elastic_range(environ)
    return None if told is None else Elastic(told.fewest, told.most)


class RunsInWorlds(SpansWorkers):
    """A strategy whose workers may come and go: it takes on the devices of each new world."""

    _followers: Followers | None = None

    def _began(
        self, elastic: Elastic, resolver: ClusterResolver | None, start_timeout: float, stall_timeout: float | None
    ) -> Placement:
        """Waits for the other workers, unless they train already, and returns the first placement."""
        from replicax.group.membership.opening import open_worlds
        from replicax.strategies.elastic_variables import Followers
        from replicax.strategies.newcomer_state import StrategyState

        self.cluster_resolver, self.cluster = cluster_of(resolver)
        keep_freed_memory()
        worlds = open_worlds(
            self.cluster,
            elastic.min_workers,
            elastic.max_workers or self.cluster.num_processes,
            start_timeout,
            stall_timeout_from(stall_timeout),
        )
        self._followers = Followers(worlds)
        worlds.always.append(StrategyState(self._followers, lambda: self.placement))
        worlds.changes.append(self._change_world)
        return self._placement_in(self._followers)

    def _placement_in(self, followers: Followers) -> Placement:
        self.workers = followers.worlds.world.names
        devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
        return Placement(devices, workers=self.workers, followers=followers)

    def _change_world(self) -> None:
        assert self._followers is not None
        before = self.placement
        forget_meshes()
        self._set_placement(self._placement_in(self._followers))
        self.__dict__.pop("_input_workers", None)
        self._followers.move(before.variable_sharding, self.placement.variable_sharding)

    def adopt(self, variable: VariableLike) -> None:
        """Lets a Keras variable that is made in the scope follow from world to world."""
        super().adopt(variable)
        if self._followers is not None:
            self._followers.add([variable])

    def join(self, checkpoint: Checkpoint | None = None, **objects: PyTree) -> bool:
        """Names the state of the training that a worker gets which joins while the others train; and lets it join.

        All workers call this before the training loop, when they have made (and restored) what the state consists of.
        In a worker that has come while the others train, it waits until they come to a boundary, and gives the objects
        the state that they have there: from their memory, not from disk. Without elasticity nothing happens.

        Boundaries are where the loop asks for the next batch of the first distributed dataset, or iterator, among the
        objects: the newcomer gets this batch, too. Without one they are where it asks any dataset for a batch. A later
        call of this method in the loop is a boundary, too.

        All variables of this strategy are given in any case, also those that the newcomer makes in its first step, and
        the states of the global random generators of Python, NumPy and Keras.

        Args:
            checkpoint: What else the state consists of, as an `rx.Checkpoint`. Numbers in it are given as they stand
                there: count in an `rx.Variable`, or set them anew in each step (`checkpoint.step = step`). None for
                what an earlier call has named.
            **objects: The same without an `rx.Checkpoint`.

        Returns:
            Whether this worker has got the state of others: nothing is to be restored or initialized then.

        Raises:
            ArgumentError: Nothing is named, neither here nor before; or `checkpoint` is no `rx.Checkpoint`.
            ElasticError: The state of the others does not fit this worker's objects.
            MeetingError: Nobody is left who has the state.

        Example:
            >>> from replicax import MultiWorkerMirroredStrategy, Variable
            >>> strategy = MultiWorkerMirroredStrategy()
            >>> with strategy.scope():
            ...     steps = Variable(0)
            >>> strategy.join(steps=steps)  # not elastic here
            False
        """
        from replicax.checkpoint.joining import join, state_named

        named = state_named(checkpoint, objects)
        return False if self._followers is None else join(named)

    @property
    def worker_index(self) -> int:
        """Number of this process among the workers that train now."""
        return super().worker_index if self._followers is None else self._followers.worlds.world.index

    @property
    def is_chief(self) -> bool:
        """Whether this process is the one that writes logs and the like; the next one is, if the chief is lost."""
        return super().is_chief if self._followers is None else self.worker_index == 0
