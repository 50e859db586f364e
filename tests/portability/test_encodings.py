"""Text files are UTF-8: each call that opens one says so, since the default on Windows is the country's encoding."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
#: Methods of paths, and how many arguments come before the encoding.
OF_PATHS = {"read_text": 0, "write_text": 1}


def without_encoding(source: str) -> Iterator[int]:
    """Yields the lines in which a text file is read or written in the default encoding."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and not any(each.arg in ("encoding", None) for each in node.keywords):
            function = node.func
            if isinstance(function, ast.Name) and function.id == "open":
                if "b" not in mode_of(node):
                    yield node.lineno
            elif isinstance(function, ast.Attribute) and len(node.args) == OF_PATHS.get(function.attr):
                yield node.lineno


def mode_of(call: ast.Call) -> str:
    """Returns the mode that a call of `open` names, as it is written there."""
    named = [each.value for each in call.keywords if each.arg == "mode"]
    return ast.unparse([*call.args[1:2], *named][0]) if call.args[1:2] or named else "r"


def test_each_text_file_has_an_encoding():
    files = [path for package in ("replicax", "pytest_replicax") for path in (ROOT / package).rglob("*.py")]
    found = {f"{path.relative_to(ROOT)}:{line}" for path in files for line in without_encoding(path.read_text("utf-8"))}
    assert found == set()


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("open(path)", [1]),
        ("\nopen(path, 'w')", [2]),
        ("open(path, mode='a')", [1]),
        ("open(path, 'rb')", []),
        ("open(path, mode='wb')", []),
        ("open(path, encoding='utf-8')", []),
        ("open(path, **settings)", []),
        ("path.read_text()", [1]),
        ("path.read_text('utf-8')", []),
        ("path.write_text(text)", [1]),
        ("path.write_text(text, encoding='utf-8')", []),
    ],
)
def test_a_call_without_one_is_found(source: str, lines: list[int]):
    assert list(without_encoding(source)) == lines
