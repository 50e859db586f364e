"""The names of Python's own modules that a system lacks, read from the stubs that come with mypy."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import mypy

STUBS = Path(mypy.__file__).parent / "typeshed" / "stdlib"
#: Modules that differ from system to system. What they lack, a program on that system does not find.
MODULES = (
    *("crypt", "ctypes", "curses", "faulthandler", "fcntl", "grp", "multiprocessing", "os", "posix", "pty"),
    *("pwd", "readline", "resource", "select", "signal", "socket", "syslog", "termios", "time", "tty"),
)
VERSION = (3, 11)


def missing(module: str, system: str) -> frozenset[str]:
    """Returns the public names of a module that Linux has and another system has not, all if it lacks the module.

    Args:
        module: Its name.
        system: What `sys.platform` is there, such as `"win32"`.
    """
    return names(module, "linux") - names(module, system)


def names(module: str, system: str) -> frozenset[str]:
    """Returns the public names that a module defines on a system."""
    for path in (STUBS / f"{module}.pyi", STUBS / module / "__init__.pyi"):
        if path.exists():
            found = _defined(ast.parse(path.read_text(encoding="utf-8")).body, system)
            return frozenset(name for name in found if not name.startswith("_"))
    raise LookupError(f"mypy has no stub of {module!r} in {STUBS}.")


def _defined(statements: list[ast.stmt], system: str) -> Iterator[str]:
    for each in statements:
        if isinstance(each, ast.If):
            yield from _defined(each.body if _holds(each.test, system) else each.orelse, system)
        elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield each.name
        elif isinstance(each, ast.AnnAssign | ast.Assign):
            for target in [each.target] if isinstance(each, ast.AnnAssign) else each.targets:
                if isinstance(target, ast.Name):
                    yield target.id
        elif isinstance(each, ast.ImportFrom) and each.module == "_socket":
            yield from (alias.asname for alias in each.names if alias.asname)


def _holds(test: ast.expr, system: str) -> bool:
    """Returns what a stub's condition about the system or Python's version is there."""
    code = compile(ast.Expression(test), "<stub>", "eval")
    sys = type("sys", (), {"platform": system, "version_info": VERSION})
    return bool(eval(code, {"sys": sys, "TYPE_CHECKING": True}))
