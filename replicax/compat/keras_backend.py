"""Keras's backend: its models run under a strategy on JAX only.

Keras decides when it is imported: by the variable `KERAS_BACKEND`, otherwise by `~/.keras/keras.json`, which it writes
itself at its first import on a machine (TensorFlow stands there then). So only the variable can be what the user has
chosen. A choice of the user's stays, and is an error as soon as a strategy meets Keras.
"""

from __future__ import annotations

import os
import pathlib
import sys
import types
import warnings
from collections.abc import MutableMapping

from replicax.errors import ProgramError

VARIABLE = "KERAS_BACKEND"


def keras_is_loaded() -> bool:
    """Returns whether the user has imported Keras."""
    return "keras" in sys.modules


def choose_jax_for_keras(environ: MutableMapping[str, str] = os.environ) -> None:
    """Makes JAX what Keras will compute with, if that is still open; `import replicax` calls this."""
    if not keras_is_loaded():
        if not environ.get(VARIABLE):
            environ[VARIABLE] = "jax"
        return
    problem = _problem(sys.modules["keras"], environ)
    if problem is not None:
        warnings.warn(problem, stacklevel=3)


def check_keras_backend() -> None:
    """Checks that Keras, which is loaded, computes with JAX."""
    problem = _problem(sys.modules["keras"], os.environ)
    if problem is not None:
        raise ProgramError(problem)


def _problem(keras: types.ModuleType, environ: MutableMapping[str, str]) -> str | None:
    backend = keras.backend.backend()
    if backend == "jax":
        return None
    if environ.get(VARIABLE) == backend:
        reason = f"because the environment variable {VARIABLE} says so"
    else:
        file = pathlib.Path(environ.get("KERAS_HOME") or pathlib.Path.home() / ".keras", "keras.json")
        reason = f"because {VARIABLE} was not set when Keras was imported and {file}, or Keras's default, says so"
    return (
        f"Keras runs on the {backend!r} backend, {reason}; replicax needs 'jax'. Set {VARIABLE}=jax, or "
        "import replicax before Keras: it sets the variable if nobody has."
    )
