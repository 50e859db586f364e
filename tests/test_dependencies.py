"""`pyproject.toml` declares what the package imports: for modules as dependencies, for single calls as extras."""

from __future__ import annotations

import ast
import functools
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Where a distribution's name is not that of the module which it brings.
BRINGS = {
    "google-api-python-client": "googleapiclient",
    "google-auth": "google",
    "google-crc32c": "google_crc32c",
    "grpcio": "grpc",
    "keras-hub": "keras_hub",
    "keras-rs": "keras_rs",
    "orbax-checkpoint": "orbax",
    "pillow": "PIL",
    "protobuf": "google",
    "pyyaml": "yaml",
    "tensorboardx": "tensorboardX",
}
# JAX needs it to write an exported program, and does not say so.
ONLY_FOR_JAX = {"flatbuffers"}
OURS = {"replicax", "pytest_replicax"}
# Folders that one command loads: its extra's module may be imported at the top there.
OF_ONE_COMMAND = {"libcst": "replicax/tensorflow/codemod/"}
# The proof of a conversion runs the script with the interpreter that its user names, which has TensorFlow.
IN_ANOTHER_INTERPRETER = ("tensorflow", "replicax/tensorflow/proof/on_tensorflow.py")
LARGE = ("matplotlib", "sklearn", "ray")


def modules_of(requirements: list[str]) -> set[str]:
    """Returns the modules that requirements bring, by the names that are imported."""
    names = {re.split(r"[^\w-]", each)[0].lower() for each in requirements}
    return {BRINGS.get(name, name) for name in names}


def imports_of(tree: ast.AST, at_top: bool = True) -> Iterator[tuple[str, bool]]:
    """Yields the outermost name of each import, and whether loading the module runs it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name.split(".")[0], at_top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0], at_top
        else:
            is_for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from imports_of(node, at_top and not is_function and not is_for_types)


@functools.cache
def imports(folder: str) -> set[tuple[str, bool, str]]:
    """Returns what each file of a folder imports from outside of the package and of Python."""
    return {
        (name, at_top, str(path.relative_to(ROOT)))
        for path in (ROOT / folder).rglob("*.py")
        for name, at_top in imports_of(ast.parse(path.read_text()))
        if name not in sys.stdlib_module_names | OURS
    }


NEEDED = modules_of(PROJECT["dependencies"])
# What the tests and checks of this repository need is for no call.
EXTRA = modules_of(
    [
        each
        for name, extra in PROJECT["optional-dependencies"].items()
        if name not in ("dev", "lint", "nightly")
        for each in extra
    ]
)


def test_loading_the_package_needs_its_dependencies_alone():
    loading = {(name, path) for name, at_top, path in imports("replicax") if at_top and name not in NEEDED}
    undeclared = {(name, path) for name, path in loading if not path.startswith(OF_ONE_COMMAND.get(name, "nowhere"))}
    assert not undeclared


def test_what_a_call_imports_is_declared_too():
    undeclared = {(name, path) for name, _, path in imports("replicax") if name not in NEEDED | EXTRA}
    assert undeclared == {IN_ANOTHER_INTERPRETER}


def test_every_dependency_is_imported():
    assert {name for name, _, _ in imports("replicax")} & NEEDED == NEEDED - ONLY_FOR_JAX


@pytest.mark.parametrize("name", LARGE)
def test_a_library_for_some_uses_alone_is_no_dependency_of_all(name: str):
    assert name not in NEEDED


def test_the_plugin_needs_pytest_alone():
    assert {name for name, _, _ in imports("pytest_replicax")} == {"pytest"}


def test_imports_are_told_apart_by_when_they_run():
    source = "import a.b\nif TYPE_CHECKING:\n    import c\ndef f():\n    from d.e import g\nclass H:\n    import i\n"
    tree = ast.parse(f"from .own import one\n{source}")
    assert [*imports_of(tree)] == [("a", True), ("c", False), ("d", False), ("i", True)]
