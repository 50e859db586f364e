"""Versions, and which backend Keras will take."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from replicax.cluster.environment import Environ
from replicax.tools.doctor.findings import Finding, fail, ok, warn

_OLDEST_PYTHON = (3, 11)
_OLDEST_JAX, _NEWEST_TESTED_JAX = (0, 10), (0, 12)  # compat says what differs.
_OLDEST_KERAS = (3, 12)
_INSTALL = "pip install --upgrade"

Version = Callable[[str], str | None]


def installed(package: str) -> str | None:
    """Returns the version of an installed package without importing it; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_software(version: Version = installed, python: str | None = None) -> Iterator[Finding]:
    """Checks that Python, JAX, jaxlib, Keras and replicax are there and fit each other."""
    yield _python(python or platform.python_version())
    yield ok("replicax", version("replicax") or "from its source, not installed")
    yield _jax(version("jax"), version("jaxlib"))
    yield _keras(version("keras"))


def _python(found: str) -> Finding:
    if _numbers(found) < _OLDEST_PYTHON:
        return fail("python", found, f"replicax needs Python {_dotted(_OLDEST_PYTHON)} or newer.", version=found)
    return ok("python", found, version=found)


def _jax(jax: str | None, jaxlib: str | None) -> Finding:
    details = {"jax": jax, "jaxlib": jaxlib}
    if jax is None or jaxlib is None:
        missing = "jax" if jax is None else "jaxlib"
        return fail("jax", f"{missing} is not installed", f"{_INSTALL} 'jax>={_dotted(_OLDEST_JAX)}'", **details)
    text = f"jax {jax}, jaxlib {jaxlib}"
    if _numbers(jax)[:2] != _numbers(jaxlib)[:2]:
        return fail("jax", f"{text}: they do not fit", f"{_INSTALL} jax=={jax} jaxlib=={jax}", **details)
    if _numbers(jax) < _OLDEST_JAX:
        return fail("jax", f"{text}: too old", f"{_INSTALL} 'jax>={_dotted(_OLDEST_JAX)}'", **details)
    if _numbers(jax)[:2] > _NEWEST_TESTED_JAX:
        cure = f"If something fails, try 'jax<{_dotted((0, _NEWEST_TESTED_JAX[1] + 1))}'."
        return warn("jax", f"{text}: newer than any that replicax was tested with", cure, **details)
    return ok("jax", text, **details)


def _keras(found: str | None) -> Finding:
    if found is None or _numbers(found) < _OLDEST_KERAS:
        text = "not installed" if found is None else f"{found}: too old"
        return fail("keras", text, f"{_INSTALL} 'keras>={_dotted(_OLDEST_KERAS)}'", version=found)
    return ok("keras", found, version=found)


def check_keras_backend(environ: Environ, home: Path | None = None) -> Finding:
    """Checks that Keras will compute with JAX: it asks KERAS_BACKEND, then its own file of settings."""
    name, told = "keras backend", environ.get("KERAS_BACKEND", "")
    cure = "export KERAS_BACKEND=jax, or import replicax before Keras, which sets it where nobody has."
    if told:
        if told != "jax":
            return fail(
                name, f"KERAS_BACKEND is {told!r}: Keras models cannot run under a strategy", cure, backend=told
            )
        return ok(name, "jax, by KERAS_BACKEND", backend="jax")
    folder = Path(environ.get("KERAS_HOME") or (home or Path.home()) / ".keras")
    try:
        backend = json.loads((folder / "keras.json").read_text(encoding="utf-8")).get("backend", "tensorflow")
    except (OSError, ValueError, AttributeError):
        backend = "tensorflow"  # Keras's own default.
    if backend == "jax":
        return ok(name, f"jax, by {folder / 'keras.json'}", backend="jax")
    text = f"KERAS_BACKEND is not set here, so Keras takes {backend} if it is imported before replicax"
    return warn(name, text, cure, backend=backend)


def _numbers(version: str) -> tuple[int, ...]:
    """Returns the leading numbers of a version: `"0.10.2.dev1"` gives `(0, 10, 2)`."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
