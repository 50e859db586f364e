"""Errors of JAX's that replicax explains, known by their words: JAX gives most of them no class of their own.

Where the words have changed, an error stays as JAX raises it: no explanation, but no wrong one.
`tests/compat/test_jax_errors.py` makes JAX raise each of them, and says which version speaks in another way.
"""

from __future__ import annotations

import re
import traceback

from jax._src import core as jax_core

_CAPTURED = "Closing over jax.Array that spans non-addressable"
_ON_A_MESH = ("should match the mesh of sharding", "use_abstract_mesh cannot change the size of the mesh")
_CALLED_ARRAY = re.compile(r"'[\w.]*(Tracer|ArrayImpl)' object is not callable")
# Where a function is called with values that differ, after it was traced with values that are equal.
_VARYING = ("pvary is a invariant->variant collective", "requires varying manual axes to match")
_LACKS_MEMORY = re.compile(r"RESOURCE_EXHAUSTED|[Rr]an out of memory|Out of memory")
_TYPE = re.compile(r"\b(?P<of_one>\w+(?:<\w+>)?\[[^\]]*\])(?P<varying>\{[^{}]*\})?")


def unknown_axes(error: BaseException) -> tuple[str, ...]:
    """Returns the names of axes that a collective asked for in vain, if that is what an error is about."""
    # A `NameError` names them. Of a value that may differ already, JAX 0.10 asserts it without a word.
    if isinstance(error, NameError):
        return tuple(re.findall(r"unbound axis name: (\w+)", str(error)))
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    if not isinstance(error, AssertionError) or frame.f_code is not jax_core.pvary.__code__:
        return ()
    return tuple(axis for axis in frame.f_locals["axes"] if axis not in frame.f_locals["new_axes"])


def is_about_varying(error: BaseException, axis_name: str) -> bool:
    """Returns whether an error is about types that differ only in whether a value may differ over an axis."""
    said = str(error)
    return axis_name in said and (any(words in said for words in _VARYING) or differ_in_axis_only(said, axis_name))


def captured_array(error: BaseException) -> str | None:
    """Returns which array of several processes a compiled function has captured, if that is what an error is about."""
    said = str(error)
    if not said.startswith(_CAPTURED):
        return None
    return said.partition("Got jax.Array: ")[2].strip() or "an array"


def is_about_array_on_mesh(error: BaseException) -> bool:
    """Returns whether a function of a replica has computed with an array that it captured and that is on the mesh."""
    return isinstance(error, ValueError) and any(words in str(error) for words in _ON_A_MESH)


def is_about_devices(error: BaseException) -> bool:
    """Returns whether a program was given arrays that are on different devices."""
    return isinstance(error, ValueError) and "ncompatible devices" in str(error)


def is_call_of_array(error: BaseException) -> bool:
    """Returns whether an array was called like a function."""
    return isinstance(error, TypeError) and _CALLED_ARRAY.search(str(error)) is not None


def lacks_memory(error: Exception | str) -> bool:
    """Returns whether an error of XLA's, or a line of it, says that a device has not enough memory."""
    return _LACKS_MEMORY.search(str(error)) is not None


def differ_in_axis_only(message: str, axis_name: str) -> bool:
    """Returns whether a message names a type both with and without the mark of values that vary over an axis."""
    marked: dict[str, set[bool]] = {}
    for found in _TYPE.finditer(message):
        marked.setdefault(found["of_one"], set()).add(axis_name in (found["varying"] or ""))
    return any(len(marks) == 2 for marks in marked.values())
