"""A call on its way to a worker's process and its result on the way back: pickled, with the functions of the script."""

from __future__ import annotations

import contextlib
import dataclasses
import linecache
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import NamedTuple, cast

import cloudpickle

from replicax.errors import ArgumentError, RemoteWorkerError, ReplicaxError


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of a function of the user's."""

    function: Callable[..., object]
    args: tuple[object, ...] = ()
    kwargs: Mapping[str, object] = dataclasses.field(default_factory=dict)


class Logging(NamedTuple):
    """The client's settings of its loggers, for those of the workers."""

    levels: dict[str, int]  # of the loggers that have one of their own; "" is the root
    has_handler: bool  # the root has one
    formatter: logging.Formatter | None  # that of the root's first handler, if it can be sent

    @classmethod
    def here(cls) -> Logging:
        """Returns how this process logs."""
        root = logging.getLogger()
        named = {name: logging.getLogger(name) for name in list(logging.Logger.manager.loggerDict)}
        levels = {"": root.level} | {name: logger.level for name, logger in named.items() if logger.level}
        formatter = root.handlers[0].formatter if root.handlers else None
        return cls(levels, bool(root.handlers), formatter if why_not_sendable(formatter) is None else None)

    def set(self) -> None:
        """Makes this process log so, to its standard error."""
        if self.has_handler:
            logging.basicConfig()
            if self.formatter is not None:
                logging.getLogger().handlers[0].setFormatter(self.formatter)
        for name, level in self.levels.items():
            logging.getLogger(name).setLevel(level)


class Sources(NamedTuple):
    """The code that the client has in no file: the cells of a notebook. With it tracebacks show the lines."""

    lines: dict[str, list[str]]  # of each cell, by its name in `linecache`

    @classmethod
    def here(cls) -> Sources:
        """Returns what this process knows."""
        without_file = (entry for entry in linecache.cache.values() if len(entry) == 4 and entry[1] is None)
        return cls({name: lines for _, _, lines, name in without_file if not os.path.exists(name)})

    def set(self) -> None:
        """Makes this process know it too."""
        for name, lines in self.lines.items():
            linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
        if self.lines and sys.excepthook is sys.__excepthook__:  # Before Python 3.13 that looks into files alone.
            sys.excepthook = traceback.print_exception


class Raised(NamedTuple):
    """A call that has raised an error."""

    error: bytes | None  # pickled; None if it cannot be


class Returned(NamedTuple):
    """A call that has returned."""

    value: object  # None if it is not wanted


def pickled(call: Call) -> bytes:
    """Returns a call for a process elsewhere. Functions and classes of the script and files beside it travel whole."""
    with _modules_by_value():
        try:
            return cast(bytes, cloudpickle.dumps(call))
        except ReplicaxError:
            raise
        except Exception as error:  # Whatever the objects raise while they are pickled.
            name = getattr(call.function, "__name__", repr(call.function))
            raise ArgumentError(
                f"{name} cannot be sent to the workers: {error}. Its arguments and what it refers to must be "
                "picklable: open files, generators, locks and connections are not. Make them inside the function."
            ) from error


def unpickled(sent: bytes) -> Call:
    """Returns the call that `pickled` was given."""
    call = cloudpickle.loads(sent)
    assert isinstance(call, Call)
    return call


def payload_of(call: Call) -> bytes:
    """Returns what a worker's process is given: the call, how the client logs, and the code that it has in no file."""
    return cast(bytes, cloudpickle.dumps((Logging.here(), Sources.here(), pickled(call))))


def why_not_sendable(value: object) -> str | None:
    """Returns why a value cannot be sent to another process; None if it can."""
    try:
        cloudpickle.dumps(value)
    except Exception as error:  # Whatever it raises while it is pickled.
        return str(error)
    return None


def run_call(call_file: int, result_file: int) -> None:
    """Runs the call in one file and writes its result to the other, in a worker's process; raises its error."""
    with os.fdopen(call_file, "rb") as file:
        *settings, sent = cloudpickle.load(file)
    for each in settings:
        each.set()
    with os.fdopen(result_file, "wb") as file:
        try:
            call = unpickled(sent)
            value = call.function(*call.args, **call.kwargs)
            # The client writes "result" as the first argument if it wants the value.
            file.write(_pickled_value(value if "result" in sys.argv else None))
        except Exception as error:
            file.write(cloudpickle.dumps(Raised(_pickled_error(error))))
            raise


def result_of(written: bytes | None) -> Returned | Raised | None:
    """Returns what `run_call` has written; None if the process ended before that, by `os._exit(0)` for example."""
    if written is None:
        return None
    result = cloudpickle.loads(written)
    assert isinstance(result, (Returned, Raised))
    return result


def error_of(raised: Raised) -> Exception | None:
    """Returns the error that a call has raised, if its class can be made here."""
    if raised.error is None:
        return None
    try:
        error = cloudpickle.loads(raised.error)
    except Exception:  # Classes whose `__init__` takes other arguments raise whatever they like.
        return None
    return error if isinstance(error, Exception) else None


def error_from(worker: str, how: str, words: str, written: bytes | None) -> Exception:
    """Returns the function's own error, caused by a `RemoteWorkerError`; that alone if there is none to make here."""
    there = RemoteWorkerError(worker, how, words)
    result = result_of(written)
    error = error_of(result) if isinstance(result, Raised) else None
    if error is None:
        return there
    error.__cause__ = there
    return error


def _pickled_value(value: object) -> bytes:
    try:
        return cloudpickle.dumps(Returned(value))
    except Exception as error:
        raise ArgumentError(
            f"The result of the function ({type(value).__name__}) cannot be sent to the client: {error}. Return "
            "arrays, numbers and the like; of a value with parts on several workers, what strategy.gather returns."
        ) from error


def _pickled_error(error: Exception) -> bytes | None:
    try:
        return cloudpickle.dumps(error)
    except Exception:  # Attributes of the error cannot be pickled; its text arrives all the same.
        return None


@contextlib.contextmanager
def _modules_by_value() -> Iterator[None]:
    """Lets the modules beside the script travel whole while the block runs: the workers' machines may lack them."""
    ours = _beside_the_script()
    for module in ours:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in ours:
            cloudpickle.unregister_pickle_by_value(module)


def _beside_the_script() -> list[ModuleType]:
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if main is None:
        return []
    folder = os.path.join(os.path.dirname(os.path.abspath(main)), "")
    found = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        inside = os.path.abspath(file).startswith(folder) if file else False
        if inside and "site-packages" not in file and name.partition(".")[0] not in ("__main__", "replicax"):
            found.append(module)
    return found
