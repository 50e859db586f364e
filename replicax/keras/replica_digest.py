"""The callback ReplicaDigest: a replica whose variables have drifted from the others' ends `fit`, and is named.

The file loads without Keras. `rx.keras.ReplicaDigest`, made by `digest_class`, is `_ReplicaDigest` on top of Keras's
`Callback`.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any, Protocol

from replicax.checks import is_int
from replicax.contracts.variable_access import name_of
from replicax.errors import ArgumentError


class _PendingLike(Protocol):
    names: tuple[str, ...]

    def check(self, step: int | None) -> None:
        """Raises an error if copies differ."""


@functools.cache
def digest_class() -> Any:
    """Returns the class `rx.keras.ReplicaDigest`; imports Keras."""
    import keras

    namespace = {"__doc__": _ReplicaDigest.__doc__, "__module__": "replicax.keras"}
    return type("ReplicaDigest", (_ReplicaDigest, keras.callbacks.Callback), namespace)


class _ReplicaDigest:
    """Compares the variables of all replicas every so many steps and at the end; ends `fit` if one has drifted.

    A mirrored variable has a copy on each device. A flipped bit, or a chip that computes wrong, changes one of them,
    and from then on that replica trains another model. Every device digests its copies of the model's and the
    optimizer's variables, in one program; the digests are compared while the next step runs. A single flipped bit is
    always found. Parts of variables that one device alone holds have nothing to compare with: all of them under
    `OneDeviceStrategy` and `CentralStorageStrategy`, most under `FullyShardedStrategy`. Then a warning says, once, how
    many variables are compared. Islands, as of `LocalSGDStrategy`, each compare the copies on their own devices.

    On several workers all must have the callback. In loops of your own, call `strategy.check_replicas`.

    Args:
        every: How many steps lie between two comparisons.

    Raises:
        ArgumentError: `every` is no number of steps; when `fit` begins: the model belongs to no strategy, or to an
            elastic one, which gives workers that come the others' values. Islands may come and go.
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
        strategy._begin_digests([])
        self._strategy = strategy
        self._steps = self._begun_at = 0
        self._has_told = False
        self._pending: list[_PendingLike] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        del batch, logs
        self._check()
        self._steps += 1
        if self._steps % self.every == 0:
            self._begin()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        del epoch, logs
        self._check()

    def on_train_end(self, logs: Any = None) -> None:
        del logs
        self._check()
        if self._steps > self._begun_at:  # Since the last comparison, or in a `fit` shorter than `every`.
            self._begin()
            self._check()

    def _begin(self) -> None:
        optimizer = self.model.optimizer
        variables = [*self.model.variables, *(optimizer.variables if optimizer is not None else ())]
        self._pending, self._begun_at = self._strategy._begin_digests(variables), self._steps
        if self._has_told:
            return
        self._has_told = True
        compared = {name for each in self._pending for name in each.names}
        trained = [name_of(each) for each in self.model.trainable_variables]
        found = sum(name in compared for name in trained)
        if found < len(trained):
            warnings.warn(
                f"ReplicaDigest: under {self._strategy!r:.200}, {found} of the {len(trained)} trainable variables of "
                f"model {self.model.name!r} have a copy on another device. The others cannot be compared: a fault in "
                "them is not found.",
                stacklevel=2,
            )

    def _check(self) -> None:
        pending, self._pending = self._pending, []
        for each in pending:
            each.check(self._begun_at)
