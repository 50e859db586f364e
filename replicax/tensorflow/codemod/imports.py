"""The imports of a converted script: what it needs is added, what nothing uses any more is dropped."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import libcst as cst
from libcst import matchers as m

from replicax.tensorflow.codemod.names import canonical, is_tensorflow, with_prefix
from replicax.tensorflow.codemod.reading import Mentions

#: The short names of modules in the targets of rules, and their imports.
MODULES: Mapping[str, str] = {
    "rx": "import replicax as rx",
    "keras": "import keras",
    "jax": "import jax",
    "jnp": "import jax.numpy as jnp",
    "np": "import numpy as np",
    "os": "import os",
    "pathlib": "import pathlib",
    "shutil": "import shutil",
    "glob": "import glob",
    "grain": "import grain",
    "math": "import math",
}
_LONG = (("jax.numpy", "jnp"), ("numpy", "np"), ("replicax", "rx"))
_Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement
KERAS_FIRST = 'os.environ.setdefault("KERAS_BACKEND", "jax")'


def shortened(target: str) -> str:
    """Returns a dotted name with the module's short name in front.

    >>> shortened("replicax.function"), shortened("jax.numpy.sum"), shortened("keras.ops.sum")
    ('rx.function', 'jnp.sum', 'keras.ops.sum')
    """
    return with_prefix(target, _LONG)


def lengthened(target: str) -> str:
    """Returns a dotted name with the module's whole name in front, as an import wants it."""
    return with_prefix(target, ((short, long) for long, short in _LONG))


class Binding(NamedTuple):
    """The thing that an import binds: a name of the script, and the canonical name of the thing."""

    name: str
    meaning: str


def bindings(node: cst.Import | cst.ImportFrom) -> Iterator[tuple[cst.ImportAlias, Binding]]:
    """Yields what an import binds, by alias. Star imports and relative ones bind nothing here."""
    if isinstance(node, cst.ImportFrom) and (node.relative or node.module is None):
        return
    module = cst.Module([]).code_for_node(node.module) + "." if isinstance(node, cst.ImportFrom) and node.module else ""
    if isinstance(node.names, cst.ImportStar):
        return
    for alias in node.names:
        name = alias.evaluated_alias or (alias.evaluated_name if module else alias.evaluated_name.partition(".")[0])
        bound_is_root = not module and alias.asname is None
        meaning = module + alias.evaluated_name
        yield alias, Binding(name, canonical(meaning.partition(".")[0] if bound_is_root else meaning))


def fixed(module: cst.Module, converted: Mapping[tuple[str, str], str], needed: Collection[str]) -> cst.Module:
    """Returns a rewritten script with its imports: `converted` bindings get a new name, `needed` modules are added."""
    used = used_names(module)
    place = next((at for at, each in enumerate(module.body) if _imports_keras(each)), _behind_docstring(module))
    # A name such as `keras`, if it is needed, is no longer TensorFlow's.
    found = cst.ensure_type(module.visit(_Fixer(converted, used - set(needed))), cst.Module)
    place = min(place, len(found.body))
    bound = _bound(found)
    new = [line for name, line in MODULES.items() if name in needed and name in used and line not in bound]
    body = list(found.body)
    if "import keras" in bound | set(new) and KERAS_FIRST not in module.code:
        new = [KERAS_FIRST, *new]
        if "import os" not in _bound(found.with_changes(body=body[:place])):
            new = ["import os", *new]
            body = [*body[:place], *(each for each in body[place:] if _code(each).strip() != "import os")]
    body = [*body[:place], *(cst.parse_statement(line) for line in new), *body[place:]]
    return found.with_changes(body=_spaced(body))


def _spaced(body: list[_Statement]) -> list[_Statement]:
    """Returns statements with an empty line above and below the one that chooses Keras's backend."""
    places = [at for at, each in enumerate(body) if _code(each).strip() == KERAS_FIRST]
    for at in {at + beside for at in places for beside in (0, 1)} & set(range(1, len(body))):
        if not body[at].leading_lines:
            body[at] = body[at].with_changes(leading_lines=[cst.EmptyLine(indent=False)])
    return body


def of_tensorflow(module: cst.Module) -> Iterator[Binding]:
    """Yields what a script's imports of TensorFlow bind, wherever they stand."""
    for node in m.findall(module, m.Import() | m.ImportFrom()):
        if isinstance(node, (cst.Import, cst.ImportFrom)):
            yield from (binding for alias, binding in bindings(node) if is_tensorflow(_root(node, alias)))


def used_names(module: cst.Module) -> set[str]:
    """Returns the names that a script reads or writes outside of its imports."""
    return set(Mentions.of([module]).reads)


def _imports_keras(node: cst.CSTNode) -> bool:
    found = [False]

    class Look(cst.CSTVisitor):
        def visit_Import(self, node: cst.Import) -> None:
            found[0] |= any(is_tensorflow(each.evaluated_name) or _is_keras(each.evaluated_name) for each in node.names)

        def visit_ImportFrom(self, node: cst.ImportFrom) -> None:
            module = _module_of(node)
            found[0] |= is_tensorflow(module) or _is_keras(module)

    node.visit(Look())
    return found[0]


def _import_of(target: str, name: str) -> str:
    """Returns the import that binds a name to a target.

    >>> _import_of("keras.layers", "layers"), _import_of("keras", "keras"), _import_of("replicax.function", "fn")
    ('from keras import layers', 'import keras', 'from replicax import function as fn')
    """
    module, _, last = lengthened(target).rpartition(".")
    alias = "" if name == last else f" as {name}"
    return f"from {module} import {last}{alias}" if module else f"import {last}{alias}"


class _Fixer(cst.CSTTransformer):
    def __init__(self, converted: Mapping[tuple[str, str], str], used: set[str]):
        super().__init__()
        self._converted, self._used = converted, used

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement] | cst.RemovalSentinel:
        if not any(isinstance(each, (cst.Import, cst.ImportFrom)) for each in original_node.body):
            return updated_node
        before = [_code(each.with_changes(semicolon=cst.MaybeSentinel.DEFAULT)) for each in original_node.body]
        after = [
            line
            for code, node in zip(before, original_node.body, strict=True)
            for line in (self._lines(node) or ([code] if self._lines(node) is None else []))
        ]
        if before == after:
            return updated_node
        if not after:
            return cst.RemoveFromParent()
        first, *others = [cst.ensure_type(cst.parse_statement(line), cst.SimpleStatementLine) for line in after]
        first = first.with_changes(leading_lines=updated_node.leading_lines)
        last = [first, *others][-1].with_changes(trailing_whitespace=updated_node.trailing_whitespace)
        return cst.FlattenSentinel([first, *others[:-1], last]) if others else last

    def _lines(self, node: cst.BaseSmallStatement) -> list[str] | None:
        """Returns the imports that take the place of one; None if it stays."""
        if not isinstance(node, (cst.Import, cst.ImportFrom)):
            return None
        written: list[str] = []
        kept: list[str] = []
        for alias, binding in bindings(node):
            target = self._converted.get(binding)
            if target is not None and _import_of(target, binding.name) != _code(node):
                written.append(_import_of(target, binding.name))
            elif target is not None or binding.name in self._used or not is_tensorflow(_root(node, alias)):
                kept.append(_code(alias.with_changes(comma=cst.MaybeSentinel.DEFAULT)))
        if len(kept) == len(list(bindings(node))):
            return None
        if kept:
            written.append(
                (f"from {_module_of(node)} " if isinstance(node, cst.ImportFrom) else "") + "import " + ", ".join(kept)
            )
        return written


def _bound(module: cst.Module) -> set[str]:
    """Returns the imports at the top of a script, one name each, as `MODULES` writes them."""
    found = set()
    for statement in module.body:
        for node in statement.body if isinstance(statement, cst.SimpleStatementLine) else ():
            if isinstance(node, (cst.Import, cst.ImportFrom)) and not isinstance(node.names, cst.ImportStar):
                start = f"from {_module_of(node)} " if isinstance(node, cst.ImportFrom) else ""
                found |= {
                    f"{start}import {_code(each.with_changes(comma=cst.MaybeSentinel.DEFAULT))}" for each in node.names
                }
    return found


def _behind_docstring(module: cst.Module) -> int:
    """Returns the place behind the docstring and the imports of `__future__`."""
    place = int(module.get_docstring() is not None)
    while place < len(module.body) and _code(module.body[place]).strip().startswith("from __future__"):
        place += 1
    return place


def _code(node: cst.CSTNode) -> str:
    return cst.Module([]).code_for_node(node)


def _module_of(node: cst.ImportFrom) -> str:
    return "." * len(node.relative) + (_code(node.module) if node.module is not None else "")


def _root(node: cst.Import | cst.ImportFrom, alias: cst.ImportAlias) -> str:
    return _module_of(node) if isinstance(node, cst.ImportFrom) else alias.evaluated_name


def _is_keras(module: str) -> bool:
    return module == "keras" or module.startswith("keras.")
