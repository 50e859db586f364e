"""Private names of other libraries in a file, found in its syntax tree."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

OURS = ("replicax", "pytest_replicax")
# Names that begin with an underscore, and are documented all the same.
DOCUMENTED = {"_asdict", "_fields", "_make", "_replace", "_current_frames", "_exit", "_getframe"}
_ASKING = {"getattr", "setattr", "hasattr", "delattr", "attrgetter", "import_module", "methodcaller"}
_PRIVATE_MODULE = re.compile(r"(?!replicax)[a-z]\w*(\.\w+)*\._[a-z]\w*(\.\w+)*|keras\.src(\.\w+)*")


class Use(NamedTuple):
    """A private name in a file.

    Attributes:
        line: The line that it is on.
        name: The module or the attribute.
    """

    line: int
    name: str


def is_private(name: str) -> bool:
    """Returns whether a name is private. `_repr_png_` and the like are not: Jupyter asks for them, as documented."""
    is_shown = name.startswith("_repr_") and name.endswith("_")
    return name.startswith("_") and not name.startswith("__") and name != "_" and not is_shown


def is_private_module(module: str) -> bool:
    return any(map(is_private, module.split("."))) or f"{module}.".startswith("keras.src.")


def private_imports(tree: ast.AST) -> Iterator[Use]:
    """Yields the modules and names of other libraries that are imported although they are private."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if is_private_module(alias.name)]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name for name in found if is_private_module(name)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _PRIVATE_MODULE.fullmatch(node.value):
            names = [node.value]  # for `importlib.import_module`
        for name in names:
            if name.partition(".")[0] not in (*OURS, "__future__"):
                yield Use(node.lineno, name)


def private_attributes(tree: ast.AST) -> Iterator[Use]:
    """Yields the private attributes (and `keras.src`) that are asked of others than `self`, by name or by text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            if not _is_own(node.value):
                yield Use(node.lineno, node.attr)
        elif isinstance(node, ast.Attribute) and ast.unparse(node) == "keras.src":
            yield Use(node.lineno, "keras.src")
        elif isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            for argument in node.args if called in _ASKING else ():
                if (
                    isinstance(argument, ast.Constant)
                    and isinstance(argument.value, str)
                    and is_private(argument.value)
                ):
                    yield Use(node.lineno, argument.value)
            for keyword in node.keywords:
                if keyword.arg is not None and is_private(keyword.arg):
                    yield Use(node.lineno, keyword.arg)


def _is_own(node: ast.AST) -> bool:
    return ast.unparse(node) in ("self", "cls", "super()")


def own_names(trees: list[ast.AST]) -> set[str]:
    """Returns the private names that files define themselves: functions, classes, attributes, slots and parameters."""
    found = set()
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                found.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.arg):
                found.add(node.arg)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_own(node.value):
                found.add(node.attr)
    return {name for name in found if is_private(name)}


def trees_of(folder: Path) -> dict[Path, ast.AST]:
    return {path: ast.parse(path.read_text(), filename=str(path)) for path in sorted(folder.rglob("*.py"))}
