"""The first code in a task's process: it ties the process to its starter, then becomes the user's script or call.

The starter (below: the launcher) is `replicax run`, or a worker's host. This code is started by its path and imports
nothing of replicax or JAX, so that a script finds a plain Python process. It adds four things:

- The process dies with the launcher, even if SIGKILL ends that (Linux).
- The launcher learns at once that the script has failed, and why. The process itself may take minutes to end, since JAX
  waits at its exit for all others at a barrier. The traceback goes to the launcher and not to standard error: the
  launcher writes it to the log, and shows only that of the first failure.
- When the script imports JAX, JAX learns of the job's cluster, so that `jax.distributed.initialize()` finds it.
- The ledger of the process's time begins (`runtime/clock.py`), if `REPLICAX_LEDGER` says where.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import importlib.abc
import importlib.machinery
import importlib.util
import io
import json
import os
import signal
import sys
import threading
import time
import types
from typing import Any

_PR_SET_PDEATHSIG = 1
_FAILED = 1
_NEWS = "REPLICAX_NEWS"
_INTERRUPTED = 130
_process = os.getpid()  # A child that the script forks comes to the same end, which is not that of the task.
_forked_code = 0  # with which such a child ends
_MOST_NAMES = 8
_JAX = "jax"
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
_OF_JOB = os.path.join(_PACKAGE, "compat", "jax_clusters.py")
_OF_WAITS = os.path.join(_PACKAGE, "compat", "jax_waits.py")
_CLOCK, _OF_CLOCK = "replicax.runtime.clock", os.path.join(_PACKAGE, "runtime", "clock.py")
_LEDGER = "REPLICAX_LEDGER"


def main(arguments: list[str]) -> None:
    """Runs a script, a module or a pickled call."""
    # The launcher's process id, the descriptor for messages to it, "file", "module" or "call", and what to run.
    launcher, news, kind, target, *rest = arguments
    _die_with(int(launcher))
    os.set_inheritable(int(news), False)
    os.environ[_NEWS] = f"{os.getpid()}:{news}"  # For the health monitor, which may end the process before this code.
    faulthandler.enable()  # A crash in compiled code shows where Python was.
    sys.argv = [target, *rest]
    sys.meta_path.insert(0, _ClusterOfJob())
    atexit.register(_end_forked)  # First, so that it comes last.
    _keep_ledger()
    try:
        {"module": _run_module, "file": _run_file, "call": _run_call}[kind](target)
        if kind == "call" and os.getpid() == _process:
            _tell_return(int(news))
    except BaseException as error:
        code, words = _end_of(error)
        _tell(int(news), code, words)
        sys.exit(code)
    finally:
        _end_ledger()


class _ClusterOfJob(importlib.abc.MetaPathFinder):
    """Adds the job's cluster to those that JAX knows, when JAX is imported."""

    def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name != _JAX:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _WithCluster(spec.loader.name, spec.loader.path)
        return spec


class _WithCluster(importlib.machinery.SourceFileLoader):
    def exec_module(self, module: types.ModuleType) -> None:
        super().exec_module(module)
        _run_alone(_OF_JOB)
        clock = _clock()
        if clock is not None:
            _run_alone(_OF_WAITS)["follow"](lambda: clock.running)


def _run_alone(path: str) -> dict[str, Any]:
    """Runs a file of replicax without its packages; returns what it defines."""
    defined: dict[str, Any] = {"__name__": path}
    with io.open_code(path) as file:
        exec(compile(file.read(), path, "exec"), defined)
    return defined


def _keep_ledger() -> None:
    """Starts the clock, which the package finds as its own when the script imports that."""
    path = os.environ.pop(_LEDGER, "")  # A process that the script starts keeps none.
    if path in ("", "0"):
        return
    spec = importlib.util.spec_from_file_location(_CLOCK, _OF_CLOCK)
    assert spec is not None and spec.loader is not None
    sys.modules[_CLOCK] = clock = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(clock)
    try:
        clock.start(path)
    except OSError as error:  # A folder that is full or gone must not stop the job.
        sys.stderr.write(f"replicax run: no ledger is kept: {error}.\n")
        return
    atexit.register(clock.stop)  # Before all that the script registers, so that it comes after that.


def _clock() -> Any:
    """Returns the clock's module if a ledger is kept, otherwise None."""
    clock: Any = sys.modules.get(_CLOCK)
    return clock if clock is not None and clock.running is not None else None


def _end_ledger() -> None:
    clock = _clock()
    if clock is not None:
        clock.running.ends()


def _die_with(launcher: int) -> None:
    """Makes the system send SIGKILL when the launcher ends. Only Linux can do that."""
    if sys.platform.startswith("linux"):
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != launcher:  # It died before the call.
        os._exit(_FAILED)


def _told_by_hook(error: BaseException) -> str:
    """Returns the text that `sys.excepthook`, Python's or the script's own, prints for an uncaught error."""
    stderr, sys.stderr = sys.stderr, io.StringIO()
    try:
        sys.excepthook(type(error), error, error.__traceback__)
        return sys.stderr.getvalue()
    finally:
        sys.stderr = stderr


def _tell(news: int, code: int, words: str = "") -> None:
    """Tells the launcher the exit code, the time and the error, after everything that the script has printed."""
    if os.getpid() != _process:
        global _forked_code
        _forked_code = code
        sys.stderr.write(words)
        return
    if code == 0:
        return
    os.environ[_NEWS] = ""  # There is nothing more to tell.
    _flush()
    message = f"{json.dumps({'code': code, 'time': time.monotonic(), 'words': words})}\n".encode()
    with contextlib.suppress(OSError):  # The launcher has gone; this process follows.
        while message:
            message = message[os.write(news, message) :]
        os.close(news)


def _end_forked() -> None:
    """Ends a child that the script has forked, of which the launcher knows nothing."""
    # Without Python's last steps, as in `multiprocessing`: JAX would wait for the threads of the parent, or crash.
    if os.getpid() == _process:
        return
    _flush()
    os._exit(_forked_code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # The script has closed it.
            stream.flush()


def _tell_return(news: int) -> None:
    """Tells the launcher that the call has returned, and which threads keep this process alive."""
    main = threading.main_thread()
    threads = [each.name for each in threading.enumerate() if not each.daemon and each is not main]
    with contextlib.suppress(OSError):  # The launcher has gone; this process follows.
        os.write(news, f"{json.dumps({'returned': threads[:_MOST_NAMES]})}\n".encode())


def _end_of(error: BaseException) -> tuple[int, str]:
    """Returns the exit code of an uncaught error, and the text that Python prints for it."""
    if not isinstance(error, SystemExit):
        code = _INTERRUPTED if isinstance(error, KeyboardInterrupt) else getattr(error, "exit_code", _FAILED)
        return code, _told_by_hook(_without_our_frames(error))
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 0xFF, ""
    return _FAILED, f"{error.code}\n"


def _without_our_frames(error: BaseException) -> BaseException:
    """Returns the error with only the user's part of its traceback, as if Python had run the script itself."""
    traceback = error.__traceback__
    while traceback is not None and _is_ours(traceback.tb_frame.f_code.co_filename):
        traceback = traceback.tb_next
    return error.with_traceback(traceback)


def _is_ours(filename: str) -> bool:
    return os.path.dirname(filename) == os.path.dirname(__file__) or filename.startswith("<frozen importlib")


def _run_file(path: str) -> None:
    absolute = os.path.abspath(path)
    _search_first(os.path.dirname(os.path.realpath(path)))
    main_module = _become_main(absolute, importlib.machinery.SourceFileLoader("__main__", absolute))
    with io.open_code(absolute) as file:
        code = compile(file.read(), absolute, "exec")
    exec(code, main_module.__dict__)


def _run_module(name: str) -> None:
    _search_first(os.getcwd())
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{name}.__main__")
    code = getattr(spec.loader, "get_code", lambda _: None)(spec.name) if spec is not None else None
    if spec is None or code is None:
        sys.exit(f"replicax run: {name!r} is a package without a module __main__, or contains no Python.")
    sys.argv[0] = spec.origin or name
    main_module = _become_main(spec.origin or name, spec.loader)
    main_module.__spec__, main_module.__package__ = spec, spec.parent
    exec(code, main_module.__dict__)


def _run_call(files: str) -> None:
    """Calls what a client has pickled."""
    _search_first(os.getcwd())
    _become_main("<remote>", None)
    from replicax.job.processes.call import run_call  # Only here: a script finds a plain process.

    run_call(*map(int, files.split(":")))


def _search_first(folder: str) -> None:
    """Puts the folder first in the search path, as Python would, instead of the folder of this file."""
    if not sys.flags.safe_path:
        sys.path[0] = folder


def _become_main(path: str, loader: importlib.abc.Loader | None) -> types.ModuleType:
    """Makes a new module `__main__`. `runpy` would remove its own when the script ends, before its threads do."""
    module = types.ModuleType("__main__")
    module.__dict__.update(__file__=path, __loader__=loader, __builtins__=__builtins__)
    sys.modules["__main__"] = module
    return module


if __name__ == "__main__":
    main(sys.argv[1:])
