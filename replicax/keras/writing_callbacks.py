"""Callbacks that write, where the chief may be another worker tomorrow: they are called on whichever is the chief.

Every worker has all callbacks. Those that only write (`CSVLogger`, `TensorBoard`, the progress bar) are called on the
chief. A new chief first calls the beginnings that it has missed (`on_train_begin`, `on_epoch_begin`), and what the last
chief may have been lost in: the end of the epoch. `ModelCheckpoint` is called on all, since it compares logs with
earlier ones, and all wait for the file. A `BackupAndRestore` of Keras restores on all and writes on the chief.
"""

from __future__ import annotations

import contextlib
import csv
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from replicax.compat.keras import is_default_hook, write_only_if
from replicax.contracts.strategy import StrategyBase

# The chief does for all whatever these do besides writing.
WRITERS = ("CSVLogger", "OrbaxCheckpoint", "ProgbarLogger", "RemoteMonitor", "TensorBoard", "TrackerCallback")
SAVERS = ("ModelCheckpoint",)


def is_a(callback: object, names: Sequence[str]) -> bool:
    """Returns whether a callback is of a class, or a subclass of one, of some name."""
    return any(base.__name__ in names for base in type(callback).__mro__)


class Writers:
    """The callbacks of a loop that write."""

    def __init__(self, callbacks: Sequence[Any], strategy: StrategyBase):
        # Whether another worker has begun to write before, so that files are continued; and whether callbacks are
        # called for steps that others have made before.
        self.goes_on = self.is_muted = False
        self._callbacks, self._strategy = callbacks, strategy
        self._gates = [_Gate(self, callback) for callback in callbacks if is_a(callback, WRITERS)]

    @property
    def act(self) -> bool:
        """Whether they write in this process now."""
        return self._strategy.placement.is_chief and not self.is_muted

    @property
    def steps(self) -> list[tuple[int, int]]:
        """How many training steps each has counted, and how many of them before this epoch."""
        return [gate.steps for gate in self._gates]

    @steps.setter
    def steps(self, steps: Sequence[tuple[int, int]]) -> None:
        for gate, counted in zip(self._gates, steps, strict=False):
            gate.steps = counted

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Makes Keras call them on the chief only, in a `with` block."""
        import keras

        with contextlib.ExitStack() as stack:
            for gate in self._gates:
                stack.enter_context(gate.installed())
            for callback in self._callbacks:
                if isinstance(callback, keras.callbacks.BackupAndRestore):
                    stack.enter_context(write_only_if(callback, lambda: self.act))
                elif is_a(callback, SAVERS):
                    stack.enter_context(self._saves_together(callback))
            yield

    @contextlib.contextmanager
    def _saves_together(self, callback: Any) -> Iterator[None]:
        verbose = callback.verbose
        folder = os.path.dirname(str(callback.filepath).partition("{")[0])
        if folder and "://" not in folder:
            os.makedirs(folder, exist_ok=True)  # Otherwise several workers may make it at once.

        def called(hook: Callable[..., None], name: str, *args: Any, **kwargs: Any) -> None:
            if self.is_muted:
                return
            callback.verbose = verbose if self.act else 0
            membership = callback.model._replicax
            membership.saves_together = True
            try:
                hook(*args, **kwargs)
            finally:
                membership.saves_together = False

        try:
            with _replaced(callback, called):
                yield
        finally:
            callback.verbose = verbose

    def catch_up(self) -> None:
        """Calls the ends that the last chief may have been lost in, if this worker is the chief now."""
        for gate in self._gates:
            gate.catch_up()

    def settle(self) -> None:
        """Forgets them: the chief has come through them."""
        for gate in self._gates:
            gate.missed.clear()


class _Gate:
    """Lets the calls of one callback through on the chief."""

    def __init__(self, writers: Writers, callback: Any):
        self.missed: list[tuple[Any, ...]] = []  # ends of epochs not let through, which a lost chief may have missed
        self._writers, self._callback = writers, callback
        self._begun: dict[str, tuple[Any, ...]] = {}  # hooks whose end has not come, with their arguments
        self._hooks: dict[str, Callable[..., None]] = {}
        self._acts = False
        self.steps = (0, 0)  # training steps made, and how many of them before this epoch

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        with _replaced(self._callback, self._called) as self._hooks:
            yield

    def _called(self, hook: Callable[..., None], name: str, *args: Any, **kwargs: Any) -> None:
        given = (*args, *kwargs.values())
        self._note(name, given)
        if not self._writers.act:
            if name == "on_epoch_end" and not self._writers.is_muted:
                self.missed.append(given)
            self._give_up()
            return
        if not self._acts:
            begins_here = name in ("on_train_begin", "on_test_begin", "on_predict_begin") and len(self._begun) == 1
            self._take_over(None if begins_here else name)
        hook(*args, **kwargs)

    def _note(self, name: str, given: tuple[Any, ...]) -> None:
        """Counts training steps, and notes what has begun."""
        if name == "on_epoch_begin":
            self.steps = (self.steps[0], self.steps[0])
        if name == "on_train_batch_end":
            done, steps = int(given[0]) + 1, (self._callback.params or {}).get("steps")
            self.steps = (self.steps[1] + min(done, steps or done), self.steps[1])
        if name.endswith("_begin"):
            self._begun[name] = given
        elif name.endswith("_end"):
            self._begun.pop(name.removesuffix("_end") + "_begin", None)

    def _take_over(self, name: str | None) -> None:
        """Begins to write here: what has begun elsewhere is begun here, but for the call that comes now."""
        self._acts = True
        if (self._writers.goes_on or name is not None) and hasattr(self._callback, "append"):
            self._callback.append = True  # of a CSVLogger, which would begin its file anew
        if name is None:
            return
        for begun, given in list(self._begun.items()):
            if begun == name or begun not in self._hooks:
                continue
            if begun == "on_epoch_begin" and hasattr(self._callback, "continue_from"):
                self._callback.continue_from(self.steps[1])
            self._hooks[begun](*given)

    def _give_up(self) -> None:
        """Another worker writes from now on."""
        if self._acts:
            self._acts = False
            if "on_train_end" in self._hooks and "on_train_begin" in self._begun:
                self._hooks["on_train_end"]()  # closes files

    def catch_up(self) -> None:
        """Calls the ends of epochs that the last chief may have been lost in, if this worker is the chief now."""
        if not self._writers.act or not self.missed:
            return
        missed = self.missed.copy()
        self.missed.clear()
        for epoch, *logs in missed:
            if not self._acts:
                self._begun["on_epoch_begin"] = (epoch,)
                self._take_over("on_epoch_end")
                del self._begun["on_epoch_begin"]
            if not _has_row(self._callback, int(epoch)):
                self._hooks["on_epoch_end"](epoch, *logs)


def _has_row(callback: Any, epoch: int) -> bool:
    """Returns whether the last row that a `CSVLogger` has written is that of an epoch."""
    if not is_a(callback, ("CSVLogger",)) or not os.path.exists(callback.filename):
        return False
    with open(callback.filename, encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file, delimiter=callback.sep))
    return len(rows) > 1 and rows[-1][:1] == [str(epoch)]


@contextlib.contextmanager
def _replaced(callback: Any, called: Callable[..., None]) -> Iterator[dict[str, Callable[..., None]]]:
    """Makes Keras call `called(hook, name, *args)` in place of a callback's hooks, in a `with` block."""
    import keras

    names = [name for name in dir(keras.callbacks.Callback) if name.startswith("on_")]
    # Only those that the callback has of its own: Keras looks which these are.
    hooks = {name: getattr(callback, name) for name in names if not is_default_hook(getattr(callback, name))}
    before = {name: vars(callback)[name] for name in hooks if name in vars(callback)}

    def replacement(name: str) -> Callable[..., None]:
        def hook(*args: Any, **kwargs: Any) -> None:
            called(hooks[name], name, *args, **kwargs)

        return hook

    vars(callback).update({name: replacement(name) for name in hooks})
    try:
        yield hooks
    finally:
        for name in hooks:
            del vars(callback)[name]
        vars(callback).update(before)
