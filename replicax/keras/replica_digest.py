"""The callback ReplicaDigest: a replica whose variables have drifted from the others' ends `fit`, and is named.

The file loads without Keras. `rx.keras.ReplicaDigest`, made by `digest_class`, is `_ReplicaDigest` on top of Keras's
`Callback`.
"""

from __future__ import annotations

import functools
from typing import Any, Protocol

from replicax.checks import is_int
from replicax.errors import ArgumentError


class _PendingLike(Protocol):
    def check(self, step: int | None) -> None:
        """Raises an error if copies differ."""


@functools.cache
def digest_class() -> Any:
    """Returns the class `rx.keras.ReplicaDigest`; imports Keras."""
    import keras

    namespace = {"__doc__": _ReplicaDigest.__doc__, "__module__": "replicax.keras"}
    return type("ReplicaDigest", (_ReplicaDigest, keras.callbacks.Callback), namespace)


class _ReplicaDigest:
    """Compares the variables of all replicas every so many steps, and ends the training if one has drifted.

    A mirrored variable has a copy on each device. A flipped bit, or a chip that computes wrong, changes one of them,
    and from then on that replica trains another model. Every device digests its copies of the model's and the
    optimizer's variables, in one program; the digests are compared while the next step runs. A single flipped bit is
    always found. Parts of variables that one device alone holds, as under `FullyShardedStrategy`, have nothing to
    compare with.

    On several workers all must have the callback. In loops of your own, call `strategy.check_replicas`.

    Args:
        every: How many steps lie between two comparisons.

    Raises:
        ArgumentError: `every` is no number of steps; when `fit` begins: the model belongs to no strategy, or to one
            whose workers come and go.
        ReplicaDriftError: In `fit`: copies differ. It names the variables and the replicas.

    Example:
        >>> digest = rx.keras.ReplicaDigest(every=100)
    """

    model: Any  # Keras sets these.
    params: dict[str, Any]

    def __init__(self, every: int = 100):
        super().__init__()
        if not is_int(every) or every < 1:
            raise ArgumentError(f"`every` is a number of steps, at least 1, got {every!r}.")
        self.every = int(every)

    def on_train_begin(self, logs: Any = None) -> None:
        del logs
        from replicax.keras.models import strategy_of

        strategy: Any = strategy_of(self.model)
        if strategy is None:
            raise ArgumentError(
                f"ReplicaDigest: model {self.model.name!r} belongs to no strategy, so it has no replicas. Make it in "
                "the scope of one."
            )
        self._strategy = strategy
        self._steps = self._begun_at = 0
        self._pending: list[_PendingLike] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        del batch, logs
        self._check()
        self._steps += 1
        if self._steps % self.every == 0:
            optimizer = self.model.optimizer
            variables = [*self.model.variables, *(optimizer.variables if optimizer is not None else ())]
            self._pending, self._begun_at = self._strategy._begin_digests(variables), self._steps

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        del epoch, logs
        self._check()

    def _check(self) -> None:
        pending, self._pending = self._pending, []
        for each in pending:
            each.check(self._begun_at)
