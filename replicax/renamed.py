"""Public names that have moved. The old name works for one more release, and says where the new one is."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Mapping
from types import ModuleType

#: By the old name below `rx`, the new one. Emptied with each release.
RENAMED: Mapping[str, str] = {
    "FileSource": "data.FileSource",
    "SidecarEvaluator": "keras.SidecarEvaluator",
    "load": "load_export",
}


def renamed(root: ModuleType, name: str) -> object:
    """Returns what an old name stands for, with a `DeprecationWarning` that tells the new name.

    Args:
        root: The module `replicax`.
        name: A name in `RENAMED`.
    """
    new = RENAMED[name]
    message = f"rx.{name} is now rx.{new}. The old name works in this release and is removed in the next."
    warnings.warn(message, DeprecationWarning, stacklevel=3)
    return operator.attrgetter(new)(root)
