"""The callback ReplicaDigest: a replica whose variables have drifted from the others' ends `fit`, and is named.

The file loads without Keras. `rx.keras.ReplicaDigest`, made by `digest_class`, is `_ReplicaDigest` on top of Keras's
`Callback`.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from replicax.checks import checked_int
from replicax.contracts.variable_access import name_of
from replicax.errors import ArgumentError, ReplicaDriftError

if TYPE_CHECKING:
    from replicax.keras.kept_steps import KeptSteps


class _PendingLike(Protocol):
    names: tuple[str, ...]

    @property
    def by_name(self) -> Mapping[str, Sequence[int]]:
        """The digests that the devices have."""

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

    With `keep`, the host's memory has the values of the variables at the last comparison without a fault, and the
    batches since. If copies differ, these are written to a file with the program of the step, and `rx.replay` or
    `replicax certify --replay` makes the steps again: is the chip broken, or the program? More kinds of steps are
    compared than can be kept: not those of several processes, of one device, of several programs
    (`CentralStorageStrategy`, `numbers="bitwise"`), of an eager model, those that call Python on the host, and those
    that use variables of random keys. With `keep`, `fit` refuses these before the first step. A value that callbacks
    assign between the steps, such as a learning rate, is not kept.

    Args:
        every: How many steps lie between two comparisons.
        keep: A folder for such files; None keeps nothing.

    Raises:
        ArgumentError: `every` is no number of steps; when `fit` begins: the model belongs to no strategy, or to an
            elastic one, which gives workers that come the others' values (islands may come and go); steps cannot be
            kept.
        ReplicaDriftError: In `fit`: copies differ. It names the variables and the replicas.

    Example:
        >>> digest = rx.keras.ReplicaDigest(every=100)
    """

    model: Any  # Keras sets these.
    params: dict[str, Any]

    def __init__(self, every: int = 100, keep: str | os.PathLike[str] | None = None):
        super().__init__()
        self.every = checked_int("every", every, least=1, note=", a number of steps")
        if keep is not None and not isinstance(keep, str | os.PathLike):
            raise ArgumentError(f"`keep` is a folder, or None, got {keep!r:.100}.")
        self.keep = None if keep is None else Path(keep)

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
        self._steps = self._begun_at = self._before = 0
        self._has_told = False
        self._pending: list[_PendingLike] = []
        self._kept = self.model._replicax.kept = None if self.keep is None else self._begun_keeping(self.keep)

    def _begun_keeping(self, folder: Path) -> KeptSteps:
        from replicax.keras.kept_steps import KeptSteps

        model, strategy = self.model, self._strategy
        found = [
            (strategy.placement.spans_processes, "trains in several processes"),
            (strategy.cuts_steps, "makes a step by several programs"),
            (strategy.blocks is not None, "makes a step by several programs (numbers='bitwise')"),
            (strategy.mesh is None or strategy.mesh.size == 1, "has one device"),
            (model.run_eagerly or not model.jit_compile, "runs the model eagerly"),
        ]
        for is_so, reason in found:
            if is_so:
                raise ArgumentError(
                    f"ReplicaDigest(keep=...) keeps steps that are one program, in one process on several devices, and "
                    f"{strategy!r:.200} {reason}. Leave out keep."
                )
        folder.mkdir(parents=True, exist_ok=True)
        return KeptSteps(folder, strategy.mesh, [*self._variables(), *model.metrics_variables])

    def _variables(self) -> list[Any]:
        optimizer = self.model.optimizer
        return [*self.model.variables, *(optimizer.variables if optimizer is not None else ())]

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        del epoch, logs
        self._before = self._steps

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        del logs
        self._check()
        # With `steps_per_execution` this is called after several steps, of which `batch` is the last.
        self._steps = self._before + min(batch + 1, self.params.get("steps") or batch + 1)
        if self._steps // self.every > self._begun_at // self.every:
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
        self._pending, self._begun_at = self._strategy._begin_digests(self._variables()), self._steps
        if self._kept is not None:
            self._kept.begin()
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
            try:
                each.check(self._begun_at)
            except ReplicaDriftError as error:
                if self._kept is not None:
                    self._kept.write(error, {name: row for one in pending for name, row in one.by_name.items()})
                raise
        if self._kept is not None:
            self._kept.are_equal()
