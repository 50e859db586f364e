"""Old names and import paths. They work for one more release, and say what is there in their place.

This folder is on the path of the package `replicax`, so that `import replicax.plots` finds `plots.py` here. Code that
uses `rx.plots` comes by none of it.
"""

from __future__ import annotations

import importlib
import operator
import pkgutil
import sys
import warnings
from collections.abc import Mapping
from types import ModuleType

#: By the old name below `rx`, the new one. Emptied with each release.
RENAMED: Mapping[str, str] = {
    "FileSource": "data.FileSource",
    "SidecarEvaluator": "keras.SidecarEvaluator",
    "load": "load_export",
    "Int8": "collectives.Int8",
    "PowerSGD": "collectives.PowerSGD",
    "BatchSize": "tuning.BatchSize",
    "LearningRates": "tuning.LearningRates",
    "find_batch_size": "tuning.find_batch_size",
    "find_learning_rate": "tuning.find_learning_rate",
    "scaled_learning_rate": "tuning.scaled_learning_rate",
    "cond": "lax.cond",
    "switch": "lax.switch",
    "scan": "lax.scan",
    "while_loop": "lax.while_loop",
    "fori_loop": "lax.fori_loop",
    "load_safetensors": "weights.load_safetensors",
    "save_safetensors": "weights.save_safetensors",
    "LoadedFunction": "exporting.LoadedFunction",
}


def moved(old: str, new: str) -> None:
    """Puts the module `new` in the place of the module `old`, which is being imported, with a `DeprecationWarning`."""
    name = old.removeprefix("replicax.")
    warnings.warn(
        f"The module replicax.{name} is replicax.{new} now. The old path works in this release and is removed in the "
        f"next; rx.{name} stays.",
        DeprecationWarning,
        stacklevel=3,
    )
    module = sys.modules[old] = importlib.import_module(f"replicax.{new}")
    # Its own modules, too: loaded once more under the old path their classes would be other ones.
    for each in pkgutil.walk_packages(getattr(module, "__path__", []), f"{module.__name__}."):
        sys.modules[old + each.name.removeprefix(module.__name__)] = importlib.import_module(each.name)


def renamed(root: ModuleType, name: str) -> object:
    """Returns what an old name stands for, with a `DeprecationWarning` that tells the new name."""
    new = RENAMED[name]
    message = f"rx.{name} is now rx.{new}. The old name works in this release and is removed in the next."
    warnings.warn(message, DeprecationWarning, stacklevel=3)
    return operator.attrgetter(new)(root)
