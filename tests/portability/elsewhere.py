"""Makes this process look like one on Windows or macOS to what is imported from now on.

What other packages do there is their own affair, and they ship wheels for these systems: they are imported before.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

from tests.portability.typeshed import MODULES, missing, names

#: What replicax imports, and what imports by itself later what it takes for Linux.
PACKAGES = (
    *("asyncio.unix_events", "concurrent.futures.process", "curses", "multiprocessing.popen_fork", "pdb", "unittest"),
    *("cloudpickle", "h5py", "jax", "jax.export", "keras", "matplotlib.pyplot"),
    *("libcst", "ray", "rich.console", "scipy.optimize", "tensorboardX", "tensorstore", "typer.testing"),
)
_FOLDERS = ("/proc", "/dev/shm", "/sys")


def pretend(system: str) -> None:
    """Takes away what a system lacks: modules, names of modules, and folders that Linux alone has.

    Args:
        system: What `sys.platform` is there: `"win32"` or `"darwin"`.
    """
    for package in PACKAGES:
        importlib.import_module(package)
    for module in MODULES:
        lacking = missing(module, system)
        if lacking and lacking == names(module, "linux"):
            sys.modules[module] = None  # type: ignore[assignment]  # Importing it raises ModuleNotFoundError then.
        elif lacking:
            sys.modules[module] = _without(importlib.import_module(module), lacking)
    sys.addaudithook(_refuse_folders)
    sys.platform = system
    # The default encoding is that of the country there (with `-X warn_default_encoding`).
    warnings.filterwarnings("error", category=EncodingWarning, module=r"replicax\..*")


def _without(module: types.ModuleType, lacking: frozenset[str]) -> types.ModuleType:
    """Returns a copy without some names. Who has imported the module before goes on with the whole one."""
    copy = types.ModuleType(module.__name__)
    copy.__dict__.update((name, value) for name, value in vars(module).items() if name not in lacking)
    if module is os:
        for name in ("stat", "lstat", "access", "readlink"):
            setattr(copy, name, _without_folders(getattr(os, name)))
    return copy


def _without_folders(function: Callable[..., Any]) -> Callable[..., Any]:
    def answer(path: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_linuxs(path):
            if function.__name__ == "access":
                return False
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return function(path, *args, **kwargs)

    return answer


def _refuse_folders(event: str, arguments: tuple[object, ...]) -> None:
    if event in ("open", "os.listdir", "os.scandir") and _is_linuxs(arguments[0]):
        raise FileNotFoundError(2, "No such file or directory", str(arguments[0]))


def _is_linuxs(path: object) -> bool:
    return isinstance(path, str | os.PathLike) and os.fspath(path).startswith(_FOLDERS)
