"""Preemption of a worker: all workers save the same step, and end so that they are started again."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import logging
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import ParamSpec, TypeVar

from replicax.checkpoint.checkpoint import Checkpoint
from replicax.checkpoint.manager import CheckpointManager
from replicax.checkpoint.metadata import read_metadata
from replicax.checkpoint.places import Directory
from replicax.checks import checked_seconds
from replicax.errors import ArgumentError, ClusterError
from replicax.errors.exit_codes import ExitCode
from replicax.group.stop_vote import StopVote
from replicax.runtime.ending import only_here
from replicax.typing import PyTree

_log = logging.getLogger(__name__)
_P = ParamSpec("_P")
_T = TypeVar("_T")
_CALLS = "total_run_calls"
_STEPS_OF_MARGIN = 6  # between the last save and the end of the grace period


@dataclasses.dataclass(frozen=True)
class TerminationConfig:
    """How a worker learns that it is preempted, and what it does then.

    Args:
        termination_watcher_fn: Called every second, in a thread; returns whether this worker is preempted. SIGTERM says
            so too. An error that it raises is logged, and it is asked again.
        exit_fn: Called, without arguments, when everything is saved; by default the process ends with exit code
            `rx.exit_codes.ExitCode.RESUME` (75).
        grace_period: Seconds from the notice to the end. With 0 or None, the workers save at the next step and end.
            With more they save, train on, save again shortly before the time is up, and end.
        save_fn: Saves instead of the manager; it gets the arguments of `save_checkpoint_if_preempted`.

    Example:
        >>> config = rx.TerminationConfig(grace_period=30.0, exit_fn=lambda: None)
        >>> config.grace_period
        30.0
    """

    termination_watcher_fn: Callable[[], bool] | None = None
    exit_fn: Callable[[], object] | None = None
    grace_period: float | None = None
    save_fn: Callable[..., object] | None = None

    def __post_init__(self) -> None:
        for name in ("termination_watcher_fn", "exit_fn", "save_fn"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise ArgumentError(f"`{name}` is a function or None, got {getattr(self, name)!r:.100}.")
        if self.grace_period is not None:
            checked_seconds("grace_period", self.grace_period, zero=True, infinite=True, note=", or None")


def resume_exit() -> None:
    """Ends the process with the exit code that asks whoever started it to start it again."""
    sys.exit(int(ExitCode.RESUME))


class PreemptionWatch:
    """Notices SIGTERM in any process, at a point that all of them reach; `close` restores the signal handler."""

    def __init__(self, config: TerminationConfig):
        self._config = config
        self._vote = vote = StopVote(_careful(config.termination_watcher_fn))
        # In an elastic job a worker leaves alone, and all stop only when all of them are ended: then there is no time.
        self._last = not config.grace_period or vote.is_final
        self._closed = False
        self._before: signal.Handlers | int | Callable[[int, FrameType | None], object] | None = None
        self._handler: Callable[[int, FrameType | None], object] | None = None
        if threading.current_thread() is threading.main_thread():  # Only there can signals be handled.
            self._handler = lambda number, frame: vote.preempt()
            self._before = signal.signal(signal.SIGTERM, self._handler)
        self._at_exit = only_here(functools.partial(_close, weakref.ref(self)))
        atexit.register(self._at_exit)

    def check(self, step_seconds: float = 0.0) -> str:
        """Returns what to do here, the same in all processes: `""`, `"save"`, or `"exit"` (save and end)."""
        if self._closed:
            return ""
        preempted, grace = self._vote.preempted_at, self._config.grace_period
        if grace and self._last and preempted is not None:
            left = preempted + grace - time.monotonic()
            if left < _STEPS_OF_MARGIN * step_seconds:
                self._vote.preempt()
        if not self._vote.check():
            return ""
        if self._last:
            return "exit"
        self._last = True
        self._vote.renew()
        return "save"

    def close(self) -> None:
        """Ends the threads and restores the signal handler. May be called twice."""
        self._closed = True
        if self._handler is not None and signal.getsignal(signal.SIGTERM) is self._handler:
            # None is a handler that Python did not install, such as JAX's own, which cannot be restored.
            signal.signal(signal.SIGTERM, signal.SIG_DFL if self._before is None else self._before)
        self._handler = None
        self._vote.close()
        atexit.unregister(self._at_exit)


class PreemptionCheckpointHandler:
    """Saves when a worker is preempted (SIGTERM), so that the job can be started again where it was.

    All workers save the same step, whichever of them is preempted, and end with exit code 75. Making the handler
    restores the newest checkpoint, if there is one. Between steps nothing is exchanged: a check costs a microsecond.

    Args:
        cluster_resolver: The cluster resolver or the strategy. None will do: JAX knows which processes take part.
        checkpoint_or_checkpoint_manager: An `rx.Checkpoint`, or an `rx.CheckpointManager`, which the program may use
            for its own saves too.
        checkpoint_dir: The folder to save an `rx.Checkpoint` to; all workers must see it.
        termination_config: How a worker learns that it is preempted, and what it does then.

    Raises:
        ArgumentError: An argument has the wrong type, or `checkpoint_dir` is missing, or given with a manager.
        ClusterError: The cluster has parameter servers.
        CheckpointError: The newest checkpoint does not match the objects.

    Example:
        >>> import tempfile
        >>> steps, directory = Variable(0), tempfile.mkdtemp()
        >>> handler = PreemptionCheckpointHandler(None, Checkpoint(steps=steps), directory)
        >>> with handler:
        ...     while handler.total_run_calls < 3:
        ...         _ = handler.run(lambda: steps.assign_add(1))
        >>> handler.total_run_calls
        3
    """

    def __init__(
        self,
        cluster_resolver: object,
        checkpoint_or_checkpoint_manager: Checkpoint | CheckpointManager,
        checkpoint_dir: Directory | None = None,
        termination_config: TerminationConfig | None = None,
    ):
        _check_cluster(cluster_resolver)
        if termination_config is not None and not isinstance(termination_config, TerminationConfig):
            raise ArgumentError(f"`termination_config` is an rx.TerminationConfig, got {termination_config!r:.100}.")
        self._config = termination_config or TerminationConfig()
        self._manager = _manager(checkpoint_or_checkpoint_manager, checkpoint_dir)
        self._calls, self._seconds = 0, 0.0
        self._here = 0  # calls in this process
        self._last_check: float | None = None
        self._restore()
        self._manager.checkpoint.add_note(_CALLS, lambda: self._calls)
        self._watch = PreemptionWatch(self._config)

    @property
    def total_run_calls(self) -> int:
        """Number of steps that have been made, in this and in earlier runs of the job."""
        return self._calls

    def run(self, distributed_train_function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Saves and exits if some worker is preempted; otherwise calls the function, and counts the call.

        If the position in the data is saved too, take the batch inside the function: one that was taken before would
        count as used when the state is saved. Or call `save_checkpoint_if_preempted` after the step.

        Args:
            distributed_train_function: One step of the training.
            *args: Arguments of the function.
            **kwargs: Arguments of the function.

        Raises:
            SystemExit: The state was saved because a worker is preempted.
            CheckpointError: It could not be saved, or a worker did not answer.
        """
        self._check((), {})
        begin = time.monotonic()
        result = distributed_train_function(*args, **kwargs)
        self._count(time.monotonic() - begin)
        return result

    def save_checkpoint_if_preempted(self, *args: PyTree, **kwargs: PyTree) -> None:
        """Saves and exits if some worker is preempted. Call it after each step, instead of `run`.

        Args:
            *args: Arguments of the manager's `save`, or of `save_fn`; by default the step is the number of calls.
            **kwargs: Likewise.
        """
        now = time.monotonic()
        self._count(0.0 if self._last_check is None else now - self._last_check)
        self._last_check = now
        self._check(args, kwargs)

    @contextlib.contextmanager
    def watch_preemption_scope(self) -> Iterator[None]:
        """Makes its block one step: at its end it does what `save_checkpoint_if_preempted` does."""
        yield
        self.save_checkpoint_if_preempted()

    def close(self) -> None:
        """Stops watching: SIGTERM does again what it did before. May be called twice."""
        self._watch.close()
        self._manager.wait_until_finished()

    def __enter__(self) -> PreemptionCheckpointHandler:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _count(self, seconds: float) -> None:
        self._calls += 1
        self._here += 1
        if self._here > 1:  # The first one compiles.
            self._seconds += (seconds - self._seconds) / (self._here - 1)

    def _restore(self) -> None:
        step = self._manager.restore_or_initialize()
        if step is not None:
            calls = read_metadata(self._manager.path(step)).noted_number(_CALLS)
            self._calls = step if calls is None else calls

    def _check(self, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]) -> None:
        todo = self._watch.check(self._seconds)
        if not todo:
            return
        if self._config.save_fn is not None:
            self._config.save_fn(*args, **kwargs)
        else:
            if not args and "step" not in kwargs:
                args = (self._calls,)
            self._manager.save(*args, **{"force": True, **kwargs})
            self._manager.wait_until_finished()
        if todo == "exit":
            self._watch.close()
            (self._config.exit_fn or resume_exit)()


def _careful(watcher: Callable[[], bool] | None) -> Callable[[], bool] | None:
    """Returns a watcher whose errors are logged and mean no."""
    if watcher is None:
        return None
    logged: set[str] = set()

    def is_preempted() -> bool:
        try:
            return bool(watcher())
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            if text not in logged:
                logged.add(text)
                _log.warning("termination_watcher_fn raised %s; it is asked again in a second.", text)
            return False

    return is_preempted


def _manager(given: object, directory: Directory | None) -> CheckpointManager:
    if isinstance(given, CheckpointManager):
        if directory is not None:
            raise ArgumentError("A manager knows its directory: leave `checkpoint_dir` out.")
        return given
    if not isinstance(given, Checkpoint):
        raise ArgumentError(f"A handler takes an rx.Checkpoint or an rx.CheckpointManager, got {given!r:.100}.")
    if directory is None:
        raise ArgumentError("`checkpoint_dir` is missing: the folder to save the rx.Checkpoint to.")
    return CheckpointManager(directory, max_to_keep=1, async_=False, checkpoint=given)


def _check_cluster(resolver_or_strategy: object) -> None:
    resolver = getattr(resolver_or_strategy, "cluster_resolver", resolver_or_strategy)
    spec = resolver.cluster_spec() if hasattr(resolver, "cluster_spec") else None
    if spec is not None and "ps" in spec.jobs:
        raise ClusterError(
            "cluster_resolver", "ps", "has parameter servers", "Preemption is handled in synchronous training only."
        )


def _close(watch: weakref.ref[PreemptionWatch]) -> None:
    """Closes a watch before JAX leaves the cluster at exit: no thread may wait for an answer then."""
    alive = watch()
    if alive is not None:
        alive.close()


__all__ = ["PreemptionCheckpointHandler", "PreemptionWatch", "TerminationConfig", "resume_exit"]
