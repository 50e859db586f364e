"""Calls with TensorFlow's keywords, of which is noted what was tried; and `docs/check_table.py`, which has the list."""

from __future__ import annotations

import importlib.util
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from replicax.tensorflow.names import NAMES

ROOT = Path(__file__).resolve().parents[3]

#: The names that some test tries.
TRIED: set[str] = set()


def load_program(name: str) -> ModuleType:
    """Returns `docs/<name>.py`, which is a program or a hook and in no package."""
    if name not in sys.modules:
        specification = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
        sys.modules[name] = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(sys.modules[name])
    return sys.modules[name]


LISTED = {name.name: name for name in load_program("check_table").names()}


def tries(*tf_names: str) -> Callable[[Any], Any]:
    """Says which names of TensorFlow a test tries; its fixture `call` then sees to it that all keywords are used."""
    TRIED.update(tf_names)

    def decorate(test: Any) -> Any:
        test.tries = tf_names
        return test

    return decorate


class Caller:
    """Calls functions by TensorFlow's names and keywords."""

    def __init__(self) -> None:
        self.used: dict[str, set[str]] = defaultdict(set)

    def __call__(self, tf_name: str, fn: Any, /, **keywords: Any) -> Any:
        """Returns `fn(**keywords)`."""
        known = set(LISTED[tf_name].keywords()) | {"self"}
        assert keywords.keys() <= known or any(each.startswith("**") for each in LISTED[tf_name].arguments)
        self.used[tf_name] |= set(keywords)
        return fn(**keywords)

    def untried(self, tf_name: str) -> set[str]:
        """Returns the keywords of a name that are accepted and were not used."""
        refused = {name for name, each in NAMES[tf_name].keywords.items() if not each.here and each.accepted == ()}
        return set(LISTED[tf_name].keywords()) - refused - self.used[tf_name]
