"""Converts one script."""

from __future__ import annotations

import ast
import dataclasses
import warnings
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import libcst as cst
from libcst import matchers as m

from replicax.errors import ArgumentError
from replicax.tensorflow.codemod import (
    device_blocks,
    estimators,
    functions,
    gradients,
    imports,
    leftovers,
    overrides,
    pipelines,
    restores,
    tables,
)
from replicax.tensorflow.codemod.findings import Finding
from replicax.tensorflow.codemod.formatting import formatted
from replicax.tensorflow.codemod.notes import notes
from replicax.tensorflow.codemod.rewriter import Action, Rewriter
from replicax.tensorflow.codemod.rules import Call, Rename
from replicax.tensorflow.codemod.script import Script
from replicax.tensorflow.codemod.spreading import joined
from replicax.tensorflow.codemod.writer import Binding, Writer

#: Each looks through a script and returns what becomes of whole statements. One node belongs to one planner.
_PLANNERS: tuple[Callable[[Script], Mapping[cst.CSTNode, Action]], ...] = (
    device_blocks.planned,
    functions.planned,
    gradients.planned,
    pipelines.planned,
    restores.planned,
    estimators.planned,
    overrides.planned,
    leftovers.planned,
)
_NOTHING: Mapping[cst.CSTNode, Action] = {}
_OF_TF = m.Attribute(value=m.Name("tf"))


class Conversion(NamedTuple):
    """The result of a conversion."""

    before: str
    after: str
    findings: tuple[Finding, ...]  # in the order of lines

    @property
    def edits(self) -> tuple[Finding, ...]:
        """The findings that need a hand edit: none if the script is converted."""
        return tuple(each for each in self.findings if is_edit(each))


def is_edit(finding: Finding) -> bool:
    """Returns whether a finding needs a hand edit."""
    return finding.severity == "edit"


def convert(text: str, name: str = "<script>", tf_data: Literal["convert", "keep"] = "convert") -> Conversion:
    """Converts a script of TensorFlow to replicax, Keras 3 and JAX; what it cannot convert stays, below a comment.

    Example:
        >>> convert("import tensorflow as tf\\nstrategy = tf.distribute.MirroredStrategy()\\n").after
        'import replicax as rx\\n\\nstrategy = rx.MirroredStrategy()\\n'
    """
    _check_depth(text, name)
    try:
        return _converted(text, name, tf_data)
    except RecursionError as error:
        raise ArgumentError(_too_deep(name)) from error


def _converted(text: str, name: str, tf_data: Literal["convert", "keep"]) -> Conversion:
    try:
        script = Script.parse(text, tables.KINDS)
    except cst.ParserSyntaxError as error:
        raise ArgumentError(_unparsable(name, text, error)) from error
    if not script.imports_tensorflow():
        if (spelled := _with_import_behind_star(script, text)) is None:
            return Conversion(text, text, ())
        found = _converted(spelled, name, tf_data)
        return found._replace(before=text)
    writer, module = _rewritten(dataclasses.replace(script, tf_data=tf_data))
    # If one pipeline has a step without a counterpart in Grain, all of them stay.
    if tf_data == "convert" and any(each.name.startswith("tf.data") for each in writer.findings if is_edit(each)):
        writer, module = _rewritten(dataclasses.replace(script, tf_data="stay"))
    module = _with_imports(writer, module)
    more = leftovers.taken(writer.script, writer.modules & imports.MODULES.keys())
    if not any(is_edit(each) for each in writer.findings):
        more = {**more, **leftovers.unexplained(writer.script, module, writer.left)}
    if more:
        writer, module = _rewritten(writer.script, more)
        module = _with_imports(writer, module)
    findings = {*writer.findings, *notes(writer.script)}
    return Conversion(text, formatted(text, module.code), tuple(sorted(findings)))


def _with_import_behind_star(script: Script, text: str) -> str | None:
    """Returns the script with TensorFlow's import behind the first star import, which may bring `tf`; or None."""
    stars = [
        each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.ImportFrom) and each.names[0].name == "*"
    ]
    read = [cst.ensure_type(each, cst.Attribute).value for each in m.findall(script.module, _OF_TF)]
    # No import for a script that does not read `tf`, or assigns it itself.
    if not stars or all(script.names.assignments(cst.ensure_type(each, cst.Name)) for each in read):
        return None
    first = min(stars, key=lambda each: each.lineno)
    lines = text.splitlines(keepends=True)
    line, end = (first.end_lineno or first.lineno) - 1, first.end_col_offset
    written = lines[line].encode()
    lines[line] = (written[:end] + b"; import tensorflow as tf" + written[end:]).decode()
    return "".join(lines)


def _with_imports(writer: Writer, module: cst.Module) -> cst.Module:
    rules = {binding: tables.lookup(binding[1]) for binding in writer.converted}
    targets = {binding: rule.target for binding, rule in rules.items() if isinstance(rule, (Rename, Call))}
    return imports.fixed(module, targets, writer.modules)


def _rewritten(script: Script, more: Mapping[cst.CSTNode, Action] = _NOTHING) -> tuple[Writer, cst.Module]:
    """Returns the writer, with its notes, and the rewritten script."""
    spelled_out: frozenset[Binding] = frozenset()
    while True:
        writer = Writer(script, spelled_out)
        rewriter = Rewriter(writer, {**_planned(script), **more}, pipelines.kept(script))
        module = joined(cst.ensure_type(script.module.visit(rewriter), cst.Module), script.spread.before)
        both = writer.converted & writer.left  # imports that are needed as they were, and with a new meaning: they stay
        if both <= spelled_out:
            return writer, module
        spelled_out |= both


def _planned(script: Script) -> Mapping[cst.CSTNode, Action]:
    """Returns what becomes of a script's statements, by node."""
    return {node: action for planner in _PLANNERS for node, action in planner(script).items()}


def _unparsable(name: str, text: str, error: cst.ParserSyntaxError) -> str:
    line = text.splitlines()[error.raw_line - 1 : error.raw_line]
    shown = f" ({line[0].strip()!r})" if line else ""
    return (
        f"{name}, line {error.raw_line}{shown} is no Python 3 that can be parsed. Correct it first; Python 2 is "
        "converted by `2to3`, a notebook by `jupyter nbconvert --to script`."
    )


# Scripts that cannot be walked through: libcst calls itself for each level of an expression.


#: Levels of a tree that libcst walks through with Python's usual limit of 1000 calls.
_DEEPEST = 300


def _check_depth(text: str, name: str) -> None:
    """Checks that a script can be walked through: it has no NUL byte, and is not nested too deeply."""
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise ArgumentError(f"{name}, line {line} has a NUL byte: it is no Python. Is it a text file, in UTF-8?")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (RecursionError, MemoryError) as error:
        raise ArgumentError(_too_deep(name)) from error
    except SyntaxError as error:
        if "too many nested" in str(error):
            raise ArgumentError(_too_deep(name)) from error
        return  # libcst says where, or knows a newer Python.
    deepest = _deepest(tree)
    if deepest is not None:
        raise ArgumentError(_too_deep(name, deepest))


def _too_deep(name: str, line: int | None = None) -> str:
    """Returns the message of a script that is nested too deeply."""
    place = "" if line is None else f", line {line}"
    return (
        f"{name}{place} is too deeply nested to be converted (over {_DEEPEST} levels; each operator of a long sum is "
        "one). Write the expression in parts, or as a list."
    )


def _deepest(tree: ast.AST) -> int | None:
    """Returns a line with more levels than can be walked through; None if there is none."""
    level: list[tuple[ast.AST, int]] = [(tree, 1)]
    for _ in range(_DEEPEST):
        level = [
            (child, getattr(child, "lineno", line)) for node, line in level for child in ast.iter_child_nodes(node)
        ]
        if not level:
            return None
    return level[0][1]
