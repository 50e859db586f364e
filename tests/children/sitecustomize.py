"""Python imports this first in every process that a test starts: `tests/conftest.py` puts its folder on PYTHONPATH.

Keras imports scikit-learn, Matplotlib and others where they are installed, for what no such process uses. That is half
of the time in which a process starts. Here Keras does not find them, as after `pip install replicax`; all others do.

At its end Python looks for garbage among all objects of JAX and Keras, twice: 0.9 s of a processor for each process.
Here it does not look. Where a test is about that end, its processes are started without this file
(`tests/soak/normal_ends.py`).
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Sequence

_HIDDEN = frozenset({"sklearn", "matplotlib", "psutil", "requests", "IPython"})
_KERAS = os.path.join("keras", "src", "")


class HiddenFromKeras:
    """A finder that denies Keras some modules and leaves all else to Python's own finders."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: object = None) -> None:
        if name not in _HIDDEN:
            return
        frame = sys._getframe(1)
        while frame.f_back and frame.f_code.co_filename.startswith("<frozen importlib"):
            frame = frame.f_back
        if _KERAS in frame.f_code.co_filename:
            raise ModuleNotFoundError(f"No module named {name!r} (hidden from Keras in the tests)", name=name)


sys.meta_path.insert(0, HiddenFromKeras)
atexit.register(gc.freeze)  # The first to be registered is the last to be called.
