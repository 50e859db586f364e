"""A script that is to be converted, with all that is known about it."""

from __future__ import annotations

import dataclasses
from typing import Literal

import libcst as cst
from libcst import matchers as m, metadata

from replicax.tensorflow.codemod.kinds import Kinds, KindTables
from replicax.tensorflow.codemod.names import Names, is_tensorflow
from replicax.tensorflow.codemod.spreading import Spread, spread

TfData = Literal["convert", "keep", "stay"]


@dataclasses.dataclass(frozen=True)
class Script:
    """A parsed script."""

    spread: Spread  # with one statement a line
    names: Names  # which name of TensorFlow an expression is
    kinds: Kinds  # what kind of object an expression gives
    wrapper: metadata.MetadataWrapper
    tf_data: TfData = "convert"  # "stay": a step has no counterpart and is reported, so all pipelines are kept

    @property
    def module(self) -> cst.Module:
        """The tree. Metadata is known of its nodes only."""
        return self.spread.module

    @property
    def keeps_tf_data(self) -> bool:
        """Whether pipelines stay TensorFlow's."""
        return self.tf_data != "convert"

    @classmethod
    def parse(cls, text: str, tables: KindTables) -> Script:
        found = spread(cst.parse_module(text))
        wrapper = metadata.MetadataWrapper(found.module, unsafe_skip_copy=True)
        names = Names(wrapper)
        return cls(found, names, Kinds(wrapper, names, tables), wrapper)

    def line(self, node: cst.CSTNode) -> int:
        """Returns the line of a node in the script as it was, from 1."""
        positions = self.wrapper.resolve(metadata.PositionProvider)
        line, first = positions[node].start.line, node
        while first not in self.spread.lines:
            parent = self.names.parent(first)
            if parent is None:
                return line
            first = parent
        return self.spread.lines[first] + line - positions[first].start.line

    def statement(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """Returns the statement that a node stands in, or is: one that can have comments above it."""
        found: cst.CSTNode | None = node
        while found is not None and not isinstance(found, (cst.SimpleStatementLine, cst.BaseCompoundStatement)):
            found = self.names.parent(found)
        return found

    def function(self, node: cst.CSTNode) -> cst.FunctionDef | None:
        """Returns the function whose body a node stands in, lambdas aside."""
        found = self.names.parent(node)
        while found is not None and not isinstance(found, cst.FunctionDef):
            found = self.names.parent(found)
        return found

    def mentions(self, name: str) -> bool:
        """Returns whether a canonical name, or one below it, stands anywhere in the script."""
        found = {self.names.of(node) for node in m.findall(self.module, m.Attribute() | m.Name())}
        return any(each is not None and (each == name or each.startswith(name + ".")) for each in found)

    def imports_tensorflow(self) -> bool:
        """Returns whether any import is of TensorFlow, or of a package upon it."""
        found = _Imports()
        self.module.visit(found)
        return found.any


class _Imports(cst.CSTVisitor):
    def __init__(self) -> None:
        self.any = False

    def visit_ImportAlias(self, node: cst.ImportAlias) -> None:
        self.any |= is_tensorflow(node.evaluated_name)

    def visit_ImportFrom(self, node: cst.ImportFrom) -> None:
        if node.module is not None and not node.relative:
            self.any |= is_tensorflow(cst.Module([]).code_for_node(node.module))
