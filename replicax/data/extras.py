"""Optional packages of readers: imported when they are used, and named with their extra when they are missing."""

from __future__ import annotations

import importlib
from types import ModuleType

from replicax.errors import ArgumentError


def needed(module: str, who: str, extra: str = "data") -> ModuleType:
    """Returns a module that `who` needs, or says which extra brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ArgumentError(
            f"{who} needs the package {package!r}, which cannot be imported ({error}). Install it: pip install "
            f"'replicax[{extra}]'."
        ) from error
