"""The chief writes: of all workers, which have the same model, one writes what is to be there once.

1. Models. A file is there whole, or not at all, and on all workers when the call returns (`save_on_workers`).
2. Callbacks. Where workers are fixed, those that write run on the chief alone (`callbacks_of_worker`). Where the chief
   may be another worker tomorrow, every worker has all callbacks, and `Writers` calls them on whichever is the chief.
   Those that only write (`CSVLogger`, `TensorBoard`, the progress bar) are called on the chief. A new chief first calls
   the beginnings that it has missed (`on_train_begin`, `on_epoch_begin`), and what the last chief may have been lost
   in: the end of the epoch. `ModelCheckpoint` is called on all, since it compares logs with earlier ones, and all wait
   for the file. A `BackupAndRestore` of Keras restores on all and writes on the chief.
"""

from __future__ import annotations

import contextlib
import csv
import itertools
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import replicax.context as context
from replicax.compat.keras import is_default_hook, stop_writing, user_lets_replace, write_only_if
from replicax.contracts.group import current_group
from replicax.contracts.strategy import StrategyBase
from replicax.contracts.variable_access import VariableLike, array_of, name_of
from replicax.errors import ArgumentError, CheckpointError
from replicax.variables import collected, lies_in_several_processes

if TYPE_CHECKING:
    from replicax.checkpoint.coordination import Coordination

_FILES = (".keras", ".h5", ".npz")
_END = "end"
# The chief does for all whatever these do besides writing.
WRITERS = ("CSVLogger", "OrbaxCheckpoint", "ProgbarLogger", "RemoteMonitor", "TensorBoard", "TrackerCallback")
SAVERS = ("ModelCheckpoint",)


# Models.


def save_on_workers(model: Any, path: Any, write: Callable[[], Any], strategy: StrategyBase, called: str) -> Any:
    """Lets the chief write a model to a file, whether all workers save it, or a callback in a loop does."""
    is_chief = strategy.placement.is_chief
    in_callback = model._replicax.loops and not model._replicax.saves_together
    if strategy.placement.group.may_change:  # Every worker has all variables.
        if not in_callback:
            return written_by_chief(f"saving the model to {path}", write, strategy)
        return write() if is_chief else None
    optimizer = getattr(model, "optimizer", None)  # of a model that was never compiled
    variables = [*model.variables, *(optimizer.variables if optimizer is not None else ())]
    is_spread = any(lies_in_several_processes(array_of(variable)) for variable in variables)
    if in_callback and not is_spread:  # Those that write run on the chief only.
        return write() if is_chief else None
    return write_together(path, write, is_chief, variables, called)


def written_by_chief(what: str, write: Callable[[], object], strategy: StrategyBase) -> None:
    """Lets the chief write; all workers go on when it is done. If the chief is lost meanwhile, the next one writes."""
    problems: list[Exception] = []

    def as_chief() -> None:
        if strategy.placement.is_chief and not problems:
            try:
                write()
            except Exception as error:
                problems.append(error)

    # Asked only when `as_chief` has been called: the message is made before.
    group = current_group()
    group.exchange(what, None, as_chief)
    told = group.exchange(f"the end of {what}", [repr(error) for error in problems])
    if problems:
        raise problems[0]
    elsewhere = [problem for each in told for problem in each]
    if elsewhere:
        raise CheckpointError(f"{what}: the chief could not write it: {elsewhere[0]}")


def write_atomically(path: Any, write: Callable[[Any], Any], overwrite: bool = True) -> Any:
    """Calls `write` with a name beside `path` and then gives the file its name, replacing an older one if it may."""
    if not str(path).endswith(_FILES) or "://" in str(path):
        return write(path)  # Folders and addresses such as `gs://...` cannot be replaced in one step.
    target = pathlib.Path(path)
    if not overwrite and target.exists() and not user_lets_replace(path):  # Keras would look for the other name.
        return None
    temporary = target.with_name(f".saving-{os.getpid()}-{target.name}")
    try:
        result = write(str(temporary))
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    return result


class _ServedReader:
    """The chief, as it reads variables of which other workers hold shards: it tells them which is next."""

    def __init__(self, variables: Sequence[VariableLike], coordination: Coordination):
        self._numbers = {id(variable): number for number, variable in enumerate(variables)}
        self._coordination, self._reads = coordination, itertools.count()

    def note_read(self, variable: VariableLike) -> None:
        """Tells the others to send their shards of a variable."""
        if id(variable) not in self._numbers:
            raise CheckpointError(
                f"{self._coordination.name}: {name_of(variable)!r} has shards on other workers, and is no variable of "
                "the model or its optimizer. Let all workers read it (`numpy()`) before."
            )
        self._tell(str(self._numbers[id(variable)]))

    def end(self) -> None:
        """Tells the others that nothing more is read."""
        self._tell(_END)

    def _tell(self, what: str) -> None:
        self._coordination.from_chief(f"shards {next(self._reads)}", what)


def write_together(
    path: Any,
    write: Callable[[], Any],
    is_chief: bool,
    variables: Sequence[VariableLike] = (),
    called: str = "",
) -> Any:
    """Lets the chief `write` for all workers, which go on when it is done; returns its result, None on the others."""
    from replicax.checkpoint.coordination import Coordination

    coordination = Coordination(f"Saving the model to {path}", called=called)
    # They are in the same order on all workers, which send their shards of one variable at a time, as the chief comes
    # to it: no worker has more than one of them whole.
    spread = [variable for variable in variables if lies_in_several_processes(array_of(variable))]
    coordination.check_same_place()
    coordination.check_same("number of sharded variables", str(len(spread)))

    def write_served() -> Any:
        reader = _ServedReader(spread, coordination)
        try:
            with context.entered(reader=reader):
                return write()
        finally:
            reader.end()

    def serve() -> None:
        for read in itertools.count():
            told = coordination.from_chief(f"shards {read}")
            if told == _END:
                return
            collected(array_of(spread[int(told)]))

    action = (write_served if spread else write) if is_chief else (serve if spread else lambda: None)
    result = coordination.run("written", action, f"The model could not be saved to {path}")
    coordination.end()
    return result


# Callbacks.


def is_a(callback: object, names: Sequence[str]) -> bool:
    """Returns whether a callback is of a class, or a subclass of one, of some name."""
    return any(base.__name__ in names for base in type(callback).__mro__)


def listed(callbacks: Any) -> list[Any]:
    """Returns the argument `callbacks` of a loop as a list: Keras takes one, several, a `CallbackList` or none."""
    given = getattr(callbacks, "callbacks", callbacks)
    if given is None:
        return []
    return list(given) if isinstance(given, (list, tuple)) else [given]


def callbacks_of_worker(callbacks: Any, is_chief: bool, last: Sequence[Any] = (), sends_shards: bool = False) -> Any:
    """Returns the callbacks that a worker runs, with `last` after them: only the chief's write."""
    import keras

    given = listed(callbacks)
    for callback in given if sends_shards else ():
        _check_reads_no_shards(callback)
    if not is_chief:
        # Where the others send the chief their shards of what it writes, the callbacks that save run on them too.
        saves = keras.callbacks.ModelCheckpoint if sends_shards else ()
        given = [callback for callback in given if isinstance(callback, saves) or not is_a(callback, WRITERS + SAVERS)]
        for callback in given:
            if isinstance(callback, keras.callbacks.BackupAndRestore):
                stop_writing(callback, sends_shards)  # Every worker must restore what it restores.
            elif isinstance(callback, saves):
                callback.verbose, callback.filepath = 0, os.path.basename(callback.filepath)  # The chief makes folders.
    given.extend(last)
    if not hasattr(callbacks, "callbacks"):
        return given
    callbacks.callbacks = given
    return callbacks


def _check_reads_no_shards(callback: Any) -> None:
    kinds = {base.__name__ for base in type(callback).__mro__}
    if "OrbaxCheckpoint" in kinds:
        raise ArgumentError(
            "keras.callbacks.OrbaxCheckpoint writes on the chief, which has its shards of the variables only. Use "
            "keras.callbacks.ModelCheckpoint or BackupAndRestore, or rx.CheckpointManager."
        )
    if "TensorBoard" in kinds and (callback.histogram_freq or callback.embeddings_freq):
        raise ArgumentError(
            "TensorBoard(histogram_freq=..., embeddings_freq=...) reads variables on the chief, which has its shards "
            "of them only. Leave these frequencies out."
        )


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
