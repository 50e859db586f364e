"""Lines of several statements: one line each while a script is converted, and as they were where nothing changed.

So `a; b` and `if a: b` are converted, removed and commented as any other statements. Comments mark the lines that were
made, until `joined` takes them out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import libcst as cst
from libcst import metadata

_Several = cst.SimpleStatementLine | cst.SimpleStatementSuite
_MARK = "# replicax-line "
#: Nodes that begin a line, once lines have one statement each.
_BEGIN = (
    *(cst.BaseSmallStatement, cst.BaseCompoundStatement, cst.ExceptHandler, cst.ExceptStarHandler, cst.Else),
    *(cst.Finally, cst.MatchCase),
)


class Spread(NamedTuple):
    """A script with one statement a line."""

    module: cst.Module
    before: Sequence[_Several] = ()  # the lines of several statements as they were, in their order
    lines: Mapping[cst.CSTNode, int] = {}  # in the script as it was, by node that begins one; empty if all are the same


def spread(module: cst.Module) -> Spread:
    """Returns a script with one statement a line."""
    spreader = _Spreader()
    after = cst.ensure_type(module.visit(spreader), cst.Module)
    if not spreader.before:
        return Spread(module)
    wrapper = metadata.MetadataWrapper(module, unsafe_skip_copy=True)
    positions = wrapper.resolve(metadata.PositionProvider)
    lines = [positions[each].start.line for each in _beginnings(module)]
    return Spread(after, spreader.before, dict(zip(_beginnings(after), lines, strict=True)))


def _beginnings(module: cst.Module) -> list[cst.CSTNode]:
    """Returns the nodes that begin a line, in the order of the script."""
    found = _Beginnings()
    module.visit(found)
    return found.nodes


class _Beginnings(cst.CSTVisitor):
    def __init__(self) -> None:
        super().__init__()
        self.nodes: list[cst.CSTNode] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, _BEGIN):
            self.nodes.append(node)
        return not isinstance(node, cst.BaseExpression)


def joined(module: cst.Module, before: Sequence[_Several]) -> cst.Module:
    """Returns a script with the lines as they were whose statements are all as they were, and without marks."""
    return cst.ensure_type(module.visit(_Joiner(before)), cst.Module) if before else module


def _lines(several: _Several, mark: str) -> list[cst.SimpleStatementLine]:
    """Returns the statements of a line, each on its own, below a mark."""
    above = several.leading_lines if isinstance(several, cst.SimpleStatementLine) else ()
    lines = [
        cst.SimpleStatementLine(
            [each.with_changes(semicolon=cst.MaybeSentinel.DEFAULT)],
            leading_lines=[*(() if at else above), cst.EmptyLine(comment=cst.Comment(mark))],
        )
        for at, each in enumerate(several.body)
    ]
    lines[-1] = lines[-1].with_changes(trailing_whitespace=several.trailing_whitespace)
    return lines


class _Spreader(cst.CSTTransformer):
    def __init__(self) -> None:
        super().__init__()
        self.before: list[_Several] = []

    def _spread(self, node: _Several) -> list[cst.SimpleStatementLine]:
        self.before.append(node)
        return _lines(node, f"{_MARK}{len(self.before) - 1}")

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine | cst.FlattenSentinel[cst.SimpleStatementLine]:
        return cst.FlattenSentinel(self._spread(original_node)) if len(original_node.body) > 1 else updated_node

    def leave_SimpleStatementSuite(
        self, original_node: cst.SimpleStatementSuite, updated_node: cst.SimpleStatementSuite
    ) -> cst.IndentedBlock:
        return cst.IndentedBlock(self._spread(original_node))


class _Joiner(cst.CSTTransformer):
    def __init__(self, before: Sequence[_Several]):
        super().__init__()
        self._before = before

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        return updated_node.with_changes(body=self._joined(updated_node.body))

    def leave_IndentedBlock(self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock) -> cst.BaseSuite:
        of_suites = {at: each for at, each in enumerate(self._before) if isinstance(each, cst.SimpleStatementSuite)}
        body = updated_node.body
        place = _place(body[0]) if body else None
        if place in of_suites and _is_same(body, _lines(of_suites[place], f"{_MARK}{place}")):
            return of_suites[place]
        return updated_node.with_changes(body=self._joined(body))

    def _joined(self, body: Sequence[cst.BaseStatement]) -> list[cst.BaseStatement]:
        written: list[cst.BaseStatement] = []
        todo = list(body)
        while todo:
            place = _place(todo[0])
            several = self._before[place] if place is not None else None
            count = len(several.body) if several is not None else 1
            if isinstance(several, cst.SimpleStatementLine) and _is_same(
                todo[:count], _lines(several, f"{_MARK}{place}")
            ):
                written.append(several)
            else:
                count = 1
                written.append(_unmarked(todo[0]))
            del todo[:count]
        return written


def _place(node: cst.BaseStatement) -> int | None:
    """Returns the number in the mark above a statement."""
    marks = [comment for comment in _comments(node) if comment.startswith(_MARK)]
    return int(marks[0].removeprefix(_MARK)) if marks else None


def _comments(node: cst.CSTNode) -> list[str]:
    return [line.comment.value for line in getattr(node, "leading_lines", ()) if line.comment is not None]


def _is_same(nodes: Sequence[cst.CSTNode], others: Sequence[cst.CSTNode]) -> bool:
    return len(nodes) == len(others) and all(a.deep_equals(b) for a, b in zip(nodes, others, strict=True))


def _unmarked(node: cst.BaseStatement) -> cst.BaseStatement:
    lines: Sequence[cst.EmptyLine] = getattr(node, "leading_lines", ())
    kept = [line for line in lines if line.comment is None or not line.comment.value.startswith(_MARK)]
    return node.with_changes(leading_lines=kept) if len(kept) < len(lines) else node
