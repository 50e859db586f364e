"""What the guard tests have in common: saying which version of which library has dropped what."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest


def needs(library: str, name: str, find: Callable[[], object]) -> object:
    """Returns what `find` does; fails with the library's version where the name has gone.

    Args:
        library: The distribution, such as `"keras"`.
        name: What replicax uses of it.
        find: Looks the name up.
    """
    try:
        return find()
    except (AttributeError, ImportError, KeyError, StopIteration, TypeError) as error:
        version = importlib.metadata.version(library)
        pytest.fail(
            f"{library} {version} has no `{name}` any more ({type(error).__name__}: {error}). "
            f"replicax/compat says beside its use what is used instead."
        )


def compat_file(name: str) -> Path:
    """Returns a file of `replicax.compat`, which is not imported."""
    found = importlib.util.find_spec(f"replicax.compat.{name}")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin)
