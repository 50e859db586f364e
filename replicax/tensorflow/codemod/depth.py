"""Refuses scripts that cannot be walked through: libcst calls itself for each level of an expression."""

from __future__ import annotations

import ast
import warnings

from replicax.errors import ArgumentError

#: Levels of a tree that libcst walks through with Python's usual limit of 1000 calls.
DEEPEST = 300


def check_depth(text: str, name: str) -> None:
    """Checks that a script can be walked through: it has no NUL byte, and is not nested too deeply."""
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise ArgumentError(f"{name}, line {line} has a NUL byte: it is no Python. Is it a text file, in UTF-8?")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (RecursionError, MemoryError) as error:
        raise ArgumentError(too_deep(name)) from error
    except SyntaxError as error:
        if "too many nested" in str(error):
            raise ArgumentError(too_deep(name)) from error
        return  # libcst says where, or knows a newer Python.
    deepest = _deepest(tree)
    if deepest is not None:
        raise ArgumentError(too_deep(name, deepest))


def too_deep(name: str, line: int | None = None) -> str:
    """Returns the message of a script that is nested too deeply."""
    place = "" if line is None else f", line {line}"
    return (
        f"{name}{place} is too deeply nested to be converted (over {DEEPEST} levels; each operator of a long sum is "
        "one). Write the expression in parts, or as a list."
    )


def _deepest(tree: ast.AST) -> int | None:
    """Returns a line with more levels than can be walked through; None if there is none."""
    level: list[tuple[ast.AST, int]] = [(tree, 1)]
    for _ in range(DEEPEST):
        level = [
            (child, getattr(child, "lineno", line)) for node, line in level for child in ast.iter_child_nodes(node)
        ]
        if not level:
            return None
    return level[0][1]
