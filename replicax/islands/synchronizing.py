"""The methods for users: which islands there are, how far they are, and that they synchronize."""

from __future__ import annotations

import contextlib
import os

import jax

import replicax.context as context
from replicax.errors import ContextError
from replicax.islands.local_variables import own_values
from replicax.islands.synchronizer import Synchronizer
from replicax.typing import PyTree


class SynchronizingMethods:
    """The methods of a strategy of islands that concern their synchronization."""

    _sync: Synchronizer

    # The islands.

    @property
    def num_islands(self) -> int:
        """Number of islands, if none is lost."""
        return self._sync.meeting.size

    @property
    def island_index(self) -> int:
        """Number of this island among them, from 0."""
        return self._sync.meeting.index

    @property
    def num_workers(self) -> int:
        """The same as `num_islands`."""
        return self.num_islands

    @property
    def worker_index(self) -> int:
        """The same as `island_index`."""
        return self.island_index

    @property
    def is_chief(self) -> bool:
        """Whether this process is the one that writes logs and the like."""
        return self.island_index == 0

    # Rounds.

    @property
    def step_in_round(self) -> int:
        """How many steps of the present round this island has made: 0 after a synchronization of everything."""
        return self._sync.now().step

    @property
    def steps(self) -> int:
        """How many training steps this island has made; one that has joined counts on from the others' steps."""
        return self._sync.now().steps

    @property
    def bytes_exchanged(self) -> int:
        """The bytes of all arrays that this island has given to exchanges."""
        return self._sync.num_bytes

    def synchronize(self) -> None:
        """Makes the variables equal on all islands, and ends the round; all islands call it.

        Whoever comes first waits; while others still make steps, it takes part in their synchronizations. Metrics
        then have the totals over all islands. Call it at the end of training, and before reading what may differ.

        Raises:
            ContextError: It was called in a step.
            BarrierTimeoutError: An island that is up did not come in time.
            ValuesMismatchError: The islands have different variables.
        """
        current = context.current()
        if current.frame is not None or current.replica is not None:
            raise ContextError("strategy.synchronize() was called in a step. Call it between steps.")
        self._sync.synchronize()

    def _meet(self, name: str) -> None:
        if self.num_islands == 1:
            return
        raise ContextError(
            f"strategy.barrier({name!r}): islands do not wait for each other by name. strategy.synchronize() waits for "
            "all of them, and makes their variables equal."
        )

    def lower_exchange(self) -> list[jax.stages.Lowered]:
        """Returns the programs with which fragments are summed over the islands, as JAX lowers them, to look at them.

        Raises:
            ContextError: The strategy is `elastic`: then the programs are made anew for whoever takes part. Or there is
                only one island.
        """
        if self.num_islands == 1:
            raise ContextError("One island exchanges nothing, so there is no program. Ask in a job of several islands.")
        lower = getattr(self._sync.meeting, "lower", None)
        if lower is None:
            raise ContextError("Exchanges of an elastic strategy have no program of their own. Give elastic=False.")
        fragments = range(self._sync.progress.schedule.fragments)
        return [lower(self._sync.example_of(fragment).arrays) for fragment in fragments]

    def own_values(self) -> contextlib.AbstractContextManager[None]:
        """Lets Python read this island's own values of variables in a `with` block, which may differ from others'."""
        return own_values()

    def add_up_metrics(self) -> None:
        """Gives metrics the totals over all islands, and leaves everything else; all islands call it.

        Raises:
            BarrierTimeoutError: An island that is up did not come in time.
        """
        with self._sync.turn():
            self._sync.meet("counts", ())

    # Checkpoints.

    def checkpoint_folder(self, path: str | os.PathLike[str]) -> str:
        """Returns the folder in `path` for this island's checkpoints: each island writes its own.

        Without `elastic` it is `path` itself: then all islands write one checkpoint together.
        """
        own = jax.process_count() == 1 and self.num_islands > 1
        return os.path.join(path, f"island-{self.island_index}") if own else os.fspath(path)

    def get_state(self) -> PyTree:
        """Returns what a checkpoint in the middle of a round needs besides the variables, for `rx.Checkpoint`.

        That is how far this island is, the values that the round began with, and the outer optimizer's state. Give the
        strategy to the checkpoint: `rx.Checkpoint(model=model, optimizer=optimizer, strategy=strategy)`.
        """
        return self._sync.get_state()

    def set_state(self, state: PyTree) -> None:
        """Goes on where `get_state` was called.

        Raises:
            ArgumentError: The state is of other rounds or fragments.
            CheckpointError: It is of another outer optimizer.
        """
        self._sync.set_state(state)
