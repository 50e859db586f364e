"""The names that a part of a script reads and assigns, and how it is left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import libcst as cst
from libcst import matchers as m

Nodes = Sequence[cst.CSTNode]


class Mentions(cst.CSTVisitor):
    """Collects the names that stand for values: no members, keywords of calls, and names in imports."""

    def __init__(self) -> None:
        self.reads: list[str] = []  # in the order of the script

    @classmethod
    def of(cls, nodes: Nodes) -> Self:
        """Returns what some statements do."""
        found = cls()
        for node in nodes:
            node.visit(found)
        return found

    def visit_Import(self, node: cst.Import) -> bool:
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        return False

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        node.value.visit(self)
        return False

    def visit_Arg(self, node: cst.Arg) -> bool:
        node.value.visit(self)
        return False

    def visit_Name(self, node: cst.Name) -> None:
        self.reads.append(node.value)


class Flow(Mentions):
    """Collects what statements do with names. An inner function assigns names of its own; those that it reads count."""

    def __init__(self) -> None:
        super().__init__()
        self.assigned: list[str] = []  # or defined
        self._functions = 0

    def _assign(self, target: cst.CSTNode) -> None:
        if isinstance(target, cst.Name):
            if not self._functions:
                self.assigned.append(target.value)
        elif isinstance(target, (cst.Tuple, cst.List)):
            for element in target.elements:
                self._assign(element.value)
        elif isinstance(target, cst.StarredElement):
            self._assign(target.value)
        else:
            target.visit(self)  # `a.b = ...` and `a[i] = ...` read `a`.

    def visit_Assign(self, node: cst.Assign) -> bool:
        node.value.visit(self)
        for target in node.targets:
            self._assign(target.target)
        return False

    def visit_AnnAssign(self, node: cst.AnnAssign) -> bool:
        if node.value is not None:
            node.value.visit(self)
        self._assign(node.target)
        return False

    def visit_AugAssign(self, node: cst.AugAssign) -> bool:
        node.target.visit(self)
        node.value.visit(self)
        self._assign(node.target)
        return False

    def visit_NamedExpr(self, node: cst.NamedExpr) -> bool:
        node.value.visit(self)
        self._assign(node.target)
        return False

    def visit_For(self, node: cst.For) -> bool:
        node.iter.visit(self)
        self._assign(node.target)
        node.body.visit(self)
        if node.orelse is not None:
            node.orelse.visit(self)
        return False

    def visit_AsName(self, node: cst.AsName) -> bool:
        self._assign(node.name)
        return False

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        self._assign(node.name)
        self._visit_all(node.decorators)
        self._functions += 1
        node.params.visit(self)
        node.body.visit(self)
        self._functions -= 1
        return False

    def visit_ClassDef(self, node: cst.ClassDef) -> bool:
        self._assign(node.name)
        self._visit_all([*node.decorators, *node.bases, *node.keywords])
        self._functions += 1
        node.body.visit(self)
        self._functions -= 1
        return False

    def visit_Param(self, node: cst.Param) -> bool:
        if node.default is not None:
            node.default.visit(self)
        return False

    def _visit_all(self, nodes: Nodes) -> None:
        for node in nodes:
            node.visit(self)


class Leaving(cst.CSTVisitor):
    """Collects what statements do beyond themselves; what an inner function or class does is its own."""

    def __init__(self, nodes: Nodes) -> None:
        self.leaves: list[str] = []  # `return`, `yield`, `await`, and `break` or `continue` of an outer loop
        self.declares = False  # `global` or `nonlocal`
        self._loops = 0
        for node in nodes:
            node.visit(self)

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        return False

    def visit_ClassDef(self, node: cst.ClassDef) -> bool:
        return False

    def visit_Lambda(self, node: cst.Lambda) -> bool:
        return False

    def visit_For_body(self, node: cst.For) -> None:
        self._loops += 1

    def leave_For_body(self, node: cst.For) -> None:
        self._loops -= 1

    def visit_While_body(self, node: cst.While) -> None:
        self._loops += 1

    def leave_While_body(self, node: cst.While) -> None:
        self._loops -= 1

    def visit_Return(self, node: cst.Return) -> None:
        self.leaves.append("return")

    def visit_Yield(self, node: cst.Yield) -> None:
        self.leaves.append("yield")

    def visit_Await(self, node: cst.Await) -> None:
        self.leaves.append("await")

    def visit_Break(self, node: cst.Break) -> None:
        if not self._loops:
            self.leaves.append("break")

    def visit_Continue(self, node: cst.Continue) -> None:
        if not self._loops:
            self.leaves.append("continue")

    def visit_Global(self, node: cst.Global) -> None:
        self.declares = True

    def visit_Nonlocal(self, node: cst.Nonlocal) -> None:
        self.declares = True


def read_first(statements: Nodes) -> set[str]:
    """Returns the names that statements assign, but may read before, or assign in some cases only."""
    certain: set[str] = set()
    found: set[str] = set()
    for statement in statements:
        flow = Flow.of([statement])
        found |= set(flow.reads) - certain
        if m.matches(statement, m.SimpleStatementLine()) or isinstance(statement, (cst.With, cst.FunctionDef)):
            certain |= set(flow.assigned)
        else:
            found |= set(flow.assigned) - certain
    return found & set(Flow.of(statements).assigned)
