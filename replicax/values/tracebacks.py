"""Short tracebacks: an error shows the user's own code, and not the frames of replicax, JAX and Keras in between.

A step passes through some seventy frames before it reaches the user's function. The decorator `entry_point` of public
functions removes those frames from the traceback; `REPLICAX_TRACEBACK=full` keeps them. Type and cause of the
error stay, and its message does, but for what Keras adds about arguments that a layer was not given.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import pathlib
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ParamSpec, TypeVar

import jax

import replicax.compat.keras as keras
import replicax.context as context
from replicax.checks.environment_names import TRACEBACK
from replicax.compat.jax_tracing import restore_trace
from replicax.contracts.called_as import translation_of
from replicax.errors import ReplicaxError

_P = ParamSpec("_P")
_T = TypeVar("_T")

_OWN = str(pathlib.Path(__file__).parents[1]) + os.sep
_NOTE = "(Frames of replicax, JAX and Keras are hidden; REPLICAX_TRACEBACK=full shows them.)"
_NOTE_OF_JAX = "JAX has removed its internal frames"


def entry_point(fn: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorates a public function: its errors show only the user's frames, and it leaves no context behind."""
    # Functions that `called_as` has decorated get one wrapper for both: every step passes it.
    translation = translation_of(fn)
    called = fn if translation is None else translation.fn

    @functools.wraps(fn)
    def entry(*args: Any, **kwargs: Any) -> Any:
        shows_all, before = _shows_all(), context.current()
        try:
            if translation is not None and (len(args) > translation.places or not kwargs.keys() <= translation.own):
                args, kwargs = translation(args, kwargs)
            return called(*args, **kwargs)
        except BaseException as error:
            context.replace(before)  # An interrupt may have come while a context was being entered or left.
            if before.frame is None:
                restore_trace()
                keras.leave_own_scopes()
            if isinstance(error, Exception) and not shows_all:
                _simplify(error)
            raise

    return entry


@functools.cache
def _shows_all() -> bool:
    if os.environ.get(TRACEBACK) != "full":
        return False
    jax.config.update("jax_traceback_filtering", "off")
    if "keras" in sys.modules:
        sys.modules["keras"].config.disable_traceback_filtering()
    return True


def _simplify(error: Exception) -> None:
    """Removes hidden frames from the tracebacks of an error and of its causes."""
    removed = 0
    for each in _chain(error):
        shown = list(_shown_frames(each))
        removed += len(list(traceback.walk_tb(each.__traceback__))) - len(shown)
        each.__traceback__ = linked(shown)
        keras.name_given_arguments_alone(each)
    notes = [note for note in getattr(error, "__notes__", ()) if _NOTE_OF_JAX not in note and note != _NOTE]
    if removed or len(notes) < len(getattr(error, "__notes__", ())):
        error.__notes__ = [*notes, _NOTE]


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _shown_frames(error: BaseException) -> Iterator[types.TracebackType]:
    hidden, own = _hidden_folders(), isinstance(error, ReplicaxError)
    passing_on = (__file__, keras.__file__) if keras.is_of_a_layer(error) else (__file__,)
    found = error.__traceback__
    while found is not None:
        file = found.tb_frame.f_code.co_filename
        # If replicax itself fails, or makes a wrong call, its line shows where. Keras removes the frames of its own.
        is_last = found.tb_next is None and not own and file.startswith(_OWN) and file not in passing_on
        if is_last or not file.startswith(hidden):
            yield found
        found = found.tb_next


def linked(frames: Sequence[types.TracebackType]) -> types.TracebackType | None:
    """Returns the traceback of some frames."""
    found = None
    for each in reversed(frames):
        found = types.TracebackType(found, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return found


@functools.cache
def _hidden_folders() -> tuple[str, ...]:
    """Returns the beginnings of the names of files whose frames are hidden."""
    found = [_OWN, contextlib.__file__, functools.__file__]
    for package in ("jax", "jaxlib", "keras"):
        specification = importlib.util.find_spec(package)  # It imports nothing.
        if specification is not None:
            found += [folder + os.sep for folder in specification.submodule_search_locations or ()]
    return tuple(found)
