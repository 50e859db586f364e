"""The end of a script: files that are being written then are finished first.

When the last line of a script has run, Python first shuts down the pools of `concurrent.futures`, then waits for
threads, and calls `atexit` last. TensorStore and asyncio hand work to these pools. So a save in the background
that is awaited by `atexit`, or by Python itself, has lost what it needs, and fails after the script has succeeded.
Here it is awaited before the pools go. A failure then is an uncaught error of the script: `sys.excepthook` gets it,
and the exit code is 1.

SIGTERM ends a script, too: whoever sends it gives some time before SIGKILL. Files being written are finished first,
unless the script handles the signal.

At its end Python looks for garbage among all objects, several times. In a process of a job nearly all of them are JAX's
and Keras's, and there are as many such processes on a machine as it has devices: what exists when a process joins its
job is left out (`pass_by_garbage`).
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import io
import logging
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import ParamSpec

from replicax.compat.interpreter import call_when_script_ends
from replicax.errors import CheckpointError
from replicax.errors.exit_codes import ExitCode

_P = ParamSpec("_P")
_unfinished: dict[object, Callable[[], object]] = {}
_lock = threading.RLock()  # The handler of SIGTERM may interrupt whoever has it.
_watches = False
_has_ended = False
_failed = False
_keeps_codes = False
_passed_by: list[weakref.ref[io.IOBase]] | None = None
_code: int | None = None
_WAITS = b"replicax: values are being restored; Ctrl-C waits until all are. Again: leave some old and some new.\n"


def only_here(call: Callable[_P, object]) -> Callable[_P, None]:
    """Returns `call` for this process: in a child that it forks, what is returned does nothing.

    A forked child has what its parent has registered for its own end, and none of the threads that it would wait for.
    To tell others of this process, or to end what belongs to it, is the parent's alone.
    """
    process = os.getpid()

    @functools.wraps(call)
    def here(*args: _P.args, **kwargs: _P.kwargs) -> None:
        if os.getpid() == process:
            call(*args, **kwargs)

    return here


def finish_at_end(key: object, finish: Callable[[], object]) -> None:
    """Has `finish` called when the script has ended, unless `finished(key)` comes first; an error makes exit code 1."""
    global _watches, _has_ended
    thread = threading.current_thread()
    with _lock:
        for ended in [each for each in _unfinished if isinstance(each, threading.Thread) and not each.is_alive()]:
            del _unfinished[ended]
        if not _watches:
            _watches = True
            try:
                call_when_script_ends(_finish_all)
            except RuntimeError:
                _has_ended = True
        _unfinished.setdefault(key, only_here(finish))
        if thread is not threading.main_thread():
            if not thread.daemon:  # It may ask again, and Python waits for it anyway.
                _unfinished.setdefault(thread, thread.join)
        elif signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _on_sigterm)


def finished(key: object) -> None:
    """Takes back `finish_at_end`: it is done, or its failure has been raised where somebody sees it."""
    with _lock:
        _unfinished.pop(key, None)


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """Wraps code that writes files: if the script ends meanwhile in the main thread, the process waits for this one."""
    global _failed
    if threading.current_thread() is threading.main_thread():
        yield
        return
    written = threading.Event()
    finish_at_end(written, written.wait)
    try:
        if _has_ended:
            raise CheckpointError(
                f"The thread {threading.current_thread().name!r} began to write when the script had ended: Python runs "
                "no writers any more. At the end of the script, join the thread that saves."
            )
        yield
    except BaseException:
        _failed = _failed or _has_ended  # An error in a thread changes no exit code now.
        raise
    finally:
        written.set()
        finished(written)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Has Ctrl-C wait until the code in the context has done all that it changes; a second one does not wait."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    came: list[FrameType | None] = []

    def note(number: int, frame: FrameType | None) -> None:
        if came:
            before(number, frame)
        came.append(frame)
        with contextlib.suppress(OSError):
            os.write(2, _WAITS)  # A stream could be in the middle of a line.

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        before(signal.SIGINT, came[0])


def _finish_all() -> None:
    """Runs in the main thread when the script has ended; more may be added meanwhile."""
    global _has_ended, _failed
    while True:
        with _lock:
            if not _unfinished:
                _has_ended = True
                return
            finish = _unfinished.pop(next(iter(_unfinished)))
        try:
            finish()
        except BaseException as error:  # Ctrl-C, too: it ends this wait, and the others are still awaited.
            _failed = True
            sys.excepthook(type(error), error, error.__traceback__)


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    """Finishes what is being written now, and ends as the signal does; a second one ends the process at once."""
    del frame
    signal.signal(number, signal.SIG_DFL)
    for key, finish in list(_unfinished.items()):
        if isinstance(key, threading.Thread):
            continue  # It may train for hours.
        try:
            finish()
        except BaseException as error:
            sys.excepthook(type(error), error, error.__traceback__)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os.kill(os.getpid(), number)


def keep_exit_codes() -> None:
    """Has the process end with the `exit_code` of an uncaught error that has one, or that an error with one caused."""
    global _keeps_codes
    with _lock:
        if _keeps_codes:
            return
        _keeps_codes = True
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        global _code
        _code = _code_of(error) if _code is None else _code
        previous(kind, error, traceback)

    sys.excepthook = hook


def pass_by_garbage() -> None:
    """Has Python's collector look no more at what exists now; the first call in a process counts."""
    # For the process of a job, when it joins the others: its imports live as long as the process, and take 0.7 of the
    # 0.8 seconds of a processor that the process needs to end. An interactive session is left alone: what its user has
    # made before may become garbage, and its end may take longer.
    global _passed_by
    with _lock:
        if _passed_by is not None or hasattr(sys, "ps1"):
            return
        gc.collect()
        objects = gc.get_objects()
        kinds = {kind for kind in set(map(type, objects)) if issubclass(kind, io.IOBase)}
        # Python closes a file that belongs to a cycle when it collects it.
        _passed_by = [weakref.ref(each) for each in objects if type(each) in kinds]
        del objects
        gc.freeze()
    atexit.register(only_here(_flush_passed_by))


def _flush_passed_by() -> None:
    for reference in _passed_by or ():
        file = reference()
        if file is not None:
            with contextlib.suppress(OSError, ValueError):  # Closed, or whoever reads it has gone.
                file.flush()


def _code_of(error: BaseException | None) -> int | None:
    while error is not None:
        if isinstance(code := getattr(error, "exit_code", None), int):
            return code
        error = error.__cause__
    return None


def _exit_if_failed() -> None:
    """Ends the process: only here, near the end of `atexit`, the exit code can still be chosen."""
    if not _failed and _code is None:
        return
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # The script has closed it.
            stream.flush()
    os._exit(ExitCode.FAILED if _code is None else _code)


atexit.register(_exit_if_failed)  # Functions that are registered from now on run before it.
