"""The thread that hands steps to workers and deals with what comes back."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from replicax.errors import CancelledError, ContextError, ParameterServerLost, WorkerLostError
from replicax.parameter_server.closures import Closure
from replicax.parameter_server.messages import Done, OtherBatch, ServerLost
from replicax.parameter_server.policy import Ledger
from replicax.parameter_server.stats import Queue

_TICK_S = 0.5
_MOST_LOST_WORKERS = 10  # A function that kills whoever runs it must not go on for ever.


class Scheduler:
    """Hands out closures. Its thread is the only one that talks to workers about steps.

    Args:
        ledger: Decides who gets what.
        submit: Sends a closure to a worker; returns a future of its answer.
        replace_worker: Starts another worker in the place of one.
        end_worker: Kills a worker that hangs.
        retrace: Returns the closure's program for the batch that a worker has; called in another thread.
        servers_lost: Deals with lost servers while nothing is under way, or raises; called in another thread.
        find_hung_servers: Kills servers that do not answer; returns whether there were any.
        done: Told of each step that is through: the worker and what it answered.
        max_queued: How many closures may wait.
        stall_timeout: After how many seconds without an answer a worker counts as hung.
    """

    def __init__(
        self,
        ledger: Ledger,
        submit: Callable[[int, Closure], concurrent.futures.Future[Any]],
        replace_worker: Callable[[int], None],
        end_worker: Callable[[int], None],
        retrace: Callable[[int, Closure, int], None],
        servers_lost: Callable[[str], None],
        find_hung_servers: Callable[[], bool],
        done: Callable[[int, Closure, Done], None],
        max_queued: int,
        stall_timeout: float,
    ):
        self._ledger = ledger
        self._submit, self._replace_worker, self._end_worker = submit, replace_worker, end_worker
        self._retrace, self._servers_lost, self._find_hung_servers = retrace, servers_lost, find_hung_servers
        self._done, self._max_queued, self._stall_timeout = done, max_queued, stall_timeout
        self._events: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._fatal: BaseException | None = None
        self._since: dict[int, float] = {}  # when each worker has begun what it is doing
        self._last_look = time.monotonic()
        self._attempts: dict[Closure, object] = {}  # answers to earlier ones count no more
        self._retracing: set[Closure] = set()
        self._quiets = 0
        self._recovering = ""
        self._recovery_began = False
        self._helper = concurrent.futures.ThreadPoolExecutor(1, "replicax-scheduler-helper")
        self._helper_thread: int | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="replicax-scheduler", daemon=True)
        self._thread.start()

    # What other threads call.

    def add(self, closure: Closure) -> None:
        """Queues a closure; waits while the queue is full.

        Raises:
            ContextError: The scheduler was closed.
        """
        with self._changed:
            self._wait(lambda: self._ledger.queued < self._max_queued or self._error is not None, None)
            if self._closed:
                raise ContextError("The strategy was closed: nothing can be scheduled any more.")
            self.raise_error()
            self._ledger.add(closure)
        self._events.put(("look",))

    def worker_ready(self, worker: int) -> None:
        """Notes that a worker has come up."""
        self._events.put(("ready", worker))

    def raise_error(self) -> None:
        """Raises the first error there has been since this was called last, when nothing is under way any more."""
        with self._changed:
            if self._error is not None:
                self._wait(lambda: self._ledger.under_way == 0, None)
            if self._fatal is not None:
                raise self._fatal
            error, self._error = self._error, None
            if error is not None:  # Another thread may have raised it while this one waited.
                raise error

    def recover_servers(self, reason: str) -> bool:
        """Lets lost servers be replaced and waits for that; returns whether it could be done from this thread.

        Raises:
            ParameterServerLost: They cannot be replaced.
        """
        if threading.get_ident() in (self._helper_thread, self._thread.ident):
            return False
        with self._changed:
            self._recovering = self._recovering or reason
            self._events.put(("look",))
            self._wait(lambda: not self._recovering, None)
            if self._fatal is not None:
                raise self._fatal
        return True

    def is_idle(self) -> bool:
        """Returns whether nothing is queued or under way."""
        with self._changed:
            return self._ledger.queued == 0 and self._ledger.under_way == 0

    def queue(self) -> Queue:
        """Returns how much there is to do."""
        with self._changed:
            return Queue(self._ledger.queued, self._ledger.under_way, len(self._ledger.ready))

    def join(self, timeout: float | None) -> bool:
        """Waits until nothing is queued or under way, or there is an error; returns whether that came about in time."""
        with self._changed:
            return self._wait(lambda: self._error is not None or self.is_idle(), timeout)

    def quiet(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which nothing is under way; others may be in one at the same time."""
        return _Quiet(self)

    def _begin_quiet(self) -> None:
        with self._changed:
            self._quiets += 1
            try:
                self._wait(self._is_quiet, None)
            except BaseException:
                self._end_quiet()
                raise

    def _is_quiet(self) -> bool:
        # The helper's own work is what has to be quiet for the helper.
        recovers = self._recovery_began and threading.get_ident() != self._helper_thread
        return self._ledger.under_way == len(self._retracing) and not recovers

    def _end_quiet(self) -> None:
        with self._changed:
            self._quiets -= 1
        self._events.put(("look",))

    def _wait(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        deadline = None if timeout is None else time.monotonic() + timeout
        while not condition() and self._fatal is None:
            if deadline is not None and time.monotonic() >= deadline:
                return False
            self._changed.wait(_TICK_S)  # with an end, so that Ctrl-C is heard
        return True

    def close(self) -> None:
        """Ends the thread; what is queued or under way is cancelled."""
        self._closed = True
        self._events.put(("look",))
        self._thread.join(10)
        self._helper.shutdown(wait=False, cancel_futures=True)
        with self._changed:
            if not self.is_idle():
                self._give_up(CancelledError("The strategy was closed before all functions had run."))
            self._changed.notify_all()

    # The thread.

    def _run(self) -> None:
        try:
            while not self._closed:
                try:
                    event = self._events.get(timeout=_TICK_S)
                except queue.Empty:
                    event = ("look",)
                with self._changed:
                    getattr(self, f"_on_{event[0]}")(*event[1:])
                    self._look_for_hung_workers()
                    self._hand_out()
                    self._changed.notify_all()
        except BaseException as error:
            with self._changed:
                self._give_up(error)
                self._changed.notify_all()

    def _hand_out(self) -> None:
        if self._error is not None:
            self._cancel_after(self._error)  # What a lost worker had is in the queue again.
        if self._fatal is not None or self._quiets:
            return
        if self._recovering:
            if self._ledger.under_way == 0 and not self._recovery_began:
                self._recovery_began = True
                self._in_helper(functools.partial(self._servers_lost, self._recovering), "recovered")
            return
        for worker, closure in self._ledger.assignments():
            if len(self._ledger.held_by(worker)) == 1:
                self._since[worker] = time.monotonic()
            self._send(worker, closure)

    def _send(self, worker: int, closure: Closure) -> None:
        future = self._submit(worker, closure)
        self._attempts[closure] = future
        future.add_done_callback(lambda future: self._events.put(("answer", worker, closure, future)))

    def _in_helper(self, task: Callable[[], None], event: str, *args: Any) -> None:
        def run() -> None:
            self._helper_thread = threading.get_ident()
            try:
                task()
            except BaseException as error:
                self._events.put((event, *args, error))
            else:
                self._events.put((event, *args, None))

        self._helper.submit(run)

    # Events.

    def _on_look(self) -> None:
        """There may be something to hand out."""

    def _look_for_hung_workers(self) -> None:
        now = time.monotonic()
        if now - self._last_look < _TICK_S:
            return
        self._last_look = now
        for worker in list(self._since):
            if self._ledger.held_by(worker) and now - self._since[worker] > self._stall_timeout:
                self._since[worker] = now
                self._in_helper(functools.partial(self._end_hung, worker, now), "hung_ended")

    def _end_hung(self, worker: int, noticed: float) -> None:
        servers_hung = self._find_hung_servers()
        if not servers_hung and self._since.get(worker) == noticed:  # It has not answered meanwhile.
            self._end_worker(worker)

    def _on_hung_ended(self, error: BaseException | None) -> None:
        if error is not None:
            self._give_up(error)

    def _on_ready(self, worker: int) -> None:
        self._ledger.worker_ready(worker)

    def _on_answer(self, worker: int, closure: Closure, future: concurrent.futures.Future[Any]) -> None:
        if self._attempts.get(closure) is not future:
            return  # It was taken away from the worker, which has been lost.
        self._since[worker] = time.monotonic()
        error = future.exception()
        if error is not None:
            self._on_failure(worker, closure, error)
            return
        answer = future.result()
        if isinstance(answer, Done):
            self._finish(worker, closure)
            self._done(worker, closure, answer)
        elif isinstance(answer, OtherBatch):
            self._retracing.add(closure)
            task = functools.partial(self._retrace, worker, closure, answer.iterator)
            self._in_helper(task, "retraced", worker, closure, future)
        elif isinstance(answer, ServerLost):
            self._put_back(worker, closure)
            self._recovering = self._recovering or answer.reason

    def _on_retraced(self, worker: int, closure: Closure, attempt: object, error: BaseException | None) -> None:
        if self._attempts.get(closure) is not attempt:
            return
        self._retracing.discard(closure)
        self._since[worker] = time.monotonic()
        if error is not None:
            self._on_failure(worker, closure, error)
        elif self._error is not None or self._quiets or self._recovering:
            self._put_back(worker, closure)
        else:
            self._send(worker, closure)

    def _finish(self, worker: int, closure: Closure) -> None:
        del self._attempts[closure]
        self._ledger.finished(worker, closure)

    def _put_back(self, worker: int, closure: Closure) -> None:
        del self._attempts[closure]
        self._ledger.put_back(worker, closure)

    def _on_failure(self, worker: int, closure: Closure, error: BaseException) -> None:
        import ray

        if isinstance(error, ray.exceptions.RayTaskError):
            self._finish(worker, closure)
            self._fail(closure, error.as_instanceof_cause())
        elif isinstance(error, ray.exceptions.RayError):
            self._lose(worker, error)
        else:
            self._finish(worker, closure)
            self._fail(closure, error)

    def _lose(self, worker: int, error: BaseException) -> None:
        self._since.pop(worker, None)
        lost = self._ledger.worker_lost(worker)
        for closure in lost:
            closure.lost_workers += 1
            self._retracing.discard(closure)
            del self._attempts[closure]
        deadly = next((closure for closure in lost if closure.lost_workers >= _MOST_LOST_WORKERS), None)
        if deadly is not None:
            self._ledger.remove(deadly)
            self._fail(deadly, WorkerLostError(
                f"{deadly.name} was given to {_MOST_LOST_WORKERS} workers, and each of them was lost while it had it. "
                f"The last time Ray said: {error}"
            ))  # fmt: skip
        self._replace_worker(worker)

    def _on_recovered(self, error: BaseException | None) -> None:
        self._recovering, self._recovery_began = "", False
        if error is not None:
            self._give_up(error)

    # Errors.

    def _fail(self, closure: Closure, error: BaseException) -> None:
        """Notes the error of a closure; what is queued is cancelled, and the first error is kept."""
        closure.value._fail(error)
        if self._error is None:
            self._error = error
        self._cancel_after(error)

    def _cancel_after(self, error: BaseException) -> None:
        self._cancel(CancelledError(f"This function was not run, because another one failed before it: {error!r}"))

    def _cancel(self, error: CancelledError, under_way: bool = False) -> None:
        closures = self._ledger.cancel_queued()
        if under_way:
            closures += [closure for worker in self._ledger.ready for closure in self._ledger.held_by(worker)]
        for closure in closures:
            if not closure.value.is_ready:
                closure.value._fail(error)

    def _give_up(self, error: BaseException) -> None:
        """Nothing can be run any more: every waiting call raises the error."""
        self._fatal = self._fatal or error
        cancelled = error if isinstance(error, CancelledError) else CancelledError(f"Training cannot go on: {error!r}")
        self._cancel(cancelled, under_way=True)


class _Quiet(contextlib.AbstractContextManager[None]):
    def __init__(self, scheduler: Scheduler):
        self._scheduler = scheduler

    def __enter__(self) -> None:
        self._scheduler._begin_quiet()

    def __exit__(self, *_: object) -> None:
        self._scheduler._end_quiet()


def fatal_server_loss(reason: str) -> ParameterServerLost:
    """Returns the error for a lost server when there is no checkpoint to go on from."""
    return ParameterServerLost(
        "A parameter server was lost, and with it the variables that it had. Give the ClusterCoordinator a "
        f"CheckpointManager, so that training goes on from the newest checkpoint. {reason}"
    )
