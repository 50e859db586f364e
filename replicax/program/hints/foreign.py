"""TensorFlow and PyTorch in a step: what JAX cannot see of them, and what to use instead.

They are known by the names of the modules that their types and functions come from; nothing is imported.
"""

from __future__ import annotations

import linecache
import sys
import types
from collections.abc import Iterator, Sequence

from replicax.errors import ArgumentError, ContextError, ProgramError
from replicax.typing import Leaf
from replicax.values.tracebacks import linked

_LIBRARIES = {"tensorflow": "TensorFlow", "torch": "PyTorch"}
_BEGINNINGS = tuple(_LIBRARIES)
_OURS = ("jax", "jaxlib", "keras", "replicax")
_INSTEAD = {
    "TensorFlow": (
        "Use jax.numpy or keras.ops (tf.reduce_sum is jnp.sum), rx.value_and_grad for tf.GradientTape, rx.function for "
        "tf.function, rx.compute_average_loss for tf.nn.compute_average_loss, jax.debug.print for tf.print."
    ),
    "PyTorch": "Use jax.numpy or keras.ops (torch.sum is jnp.sum), and rx.value_and_grad for backward().",
}
# How messages begin or what they hold, of errors that come from no Python frame of the library.
_WORDS = {
    "<class 'tensorflow.": "TensorFlow",
    "<class 'torch.": "PyTorch",
    "must be Tensor, not ": "PyTorch",
    "Could not infer dtype of ": "PyTorch",
}


def _library_of(value: object) -> str | None:
    module = type(value).__module__
    if not module.startswith(_BEGINNINGS):  # Every argument of every step comes by here.
        return None
    return _LIBRARIES.get(module.partition(".")[0])


def check_no_tensor(leaf: Leaf, what: str) -> None:
    """Checks that `leaf` is no tensor or variable of another library."""
    library = _library_of(leaf)
    if library is None or not hasattr(type(leaf), "shape"):
        return
    if what == "passed":
        cure = (
            "Give np.asarray(x), or let strategy.distribute_dataset convert the batches. If the call stands in a "
            "tf.function, make that an rx.function."
        )
    else:
        cure = f"It was computed while the function was traced, once and for all. {_INSTEAD[library]}"
    raise ArgumentError(f"A tensor of {library} was {what} ({leaf!r:.100}), and programs compute with arrays. {cure}")


def check_no_foreign_function(what: str, fn: object) -> None:
    """Checks that `fn` is no function that another library traces, such as a `tf.function`."""
    library = _library_of(fn)
    if library is not None:
        raise ArgumentError(
            f"{what} is an object of {library}, {fn!r:.100}: {library} would trace it, and JAX cannot see what it "
            f"computes. Give the plain Python function. {_INSTEAD[library]}"
        )


def check_outside_of_graphs() -> None:
    """Checks that TensorFlow traces no `tf.function` or `tf.data` pipeline: a `run` would run once, never again."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None and not tensorflow.executing_eagerly():
        raise ContextError(
            "strategy.run was called while TensorFlow traces a tf.function: it would run now, once, and not when that "
            "is called. Put @rx.function there instead of @tf.function."
        )


def explained_error(error: BaseException) -> ProgramError | None:
    """Returns what to raise instead of an error that another library has raised in a step; None for any other error."""
    library, happened, before = None, "was called", []  # The frames before the library's.
    for found in _entries(error.__traceback__):
        library = _LIBRARIES.get(_package_of(found))
        if library is not None:
            break
        before.append(found)
    if library is None:
        happened = "was used"
        library = next((library for words, library in _WORDS.items() if words in str(error)), None)
    if library is None:
        return None
    said = (str(error).strip().splitlines() or [""])[0]
    told = ProgramError(
        f"{library} {happened} in a step{_where(before)}. A step is a program of JAX: "
        f"{library} cannot compute with its values, and JAX not with {library}'s. {_INSTEAD[library]} It ended "
        f"with {type(error).__name__}: {said:.200}"
    )
    return told.with_traceback(linked(before))


def _entries(found: types.TracebackType | None) -> Iterator[types.TracebackType]:
    while found is not None:
        yield found
        found = found.tb_next


def _package_of(found: types.TracebackType) -> str:
    return str(found.tb_frame.f_globals.get("__name__", "")).partition(".")[0]


def _where(before: Sequence[types.TracebackType]) -> str:
    """Returns the user's line that called the library."""
    own = next((found for found in reversed(before) if _package_of(found) not in _OURS), None)
    if own is None:
        return ""
    file, number = own.tb_frame.f_code.co_filename, own.tb_lineno
    line = linecache.getline(file, number).strip()
    return f", at {file}:{number}" + (f" ({line})" if line else "")
