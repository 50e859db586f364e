"""Walks through a script once and applies the rules to each name, call and method."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import libcst as cst
from libcst import matchers as m, metadata

from replicax.tensorflow.codemod import tables
from replicax.tensorflow.codemod.imports import MODULES
from replicax.tensorflow.codemod.rules import Call, Code, Drop, Keep, Refuse, Rename, Rewrite, Rule
from replicax.tensorflow.codemod.writer import Writer

#: Packages that conversions write names of.
_WRITTEN = {line.split()[1].partition(".")[0] for line in MODULES.values()}
Result = cst.CSTNode | cst.FlattenSentinel[cst.CSTNode] | cst.RemovalSentinel
#: Gets the writer, the statement as it was and the statement with its parts converted.
Action = Callable[[Writer, cst.CSTNode, cst.CSTNode], Result]


def removed(writer: Writer, node: cst.CSTNode, updated: cst.CSTNode) -> Result:
    """Removes a statement, as an action; rules are not applied to what stands in it."""
    return cst.RemoveFromParent()


class Rewriter(cst.CSTTransformer):
    """Rewrites what the tables know; `actions` rewrite other nodes, and `kept` ones stay, such as input pipelines."""

    def __init__(
        self, writer: Writer, actions: Mapping[cst.CSTNode, Action], kept: frozenset[cst.CSTNode] = frozenset()
    ):
        super().__init__()
        self._writer, self._script = writer, writer.script
        self._actions, self._kept = actions, kept
        self._called: set[cst.CSTNode] = set()
        self._dropped: set[cst.CSTNode] = set()

    def on_visit(self, node: cst.CSTNode) -> bool:
        if node in self._kept:
            self._writer.leave(node)
            return False
        if self._actions.get(node) is removed:
            return False
        if isinstance(node, cst.Call):
            self._called.add(node.func)
        if isinstance(node, (cst.Import, cst.ImportFrom)):
            return False
        if isinstance(node, cst.Attribute) and self._writer.known(node):
            return False
        return super().on_visit(node)

    def on_leave(self, original_node: cst.CSTNodeT, updated_node: cst.CSTNodeT) -> Result:  # type: ignore[override]
        if original_node in self._kept:
            return original_node
        result: cst.CSTNode = updated_node
        if isinstance(original_node, cst.Call) and original_node not in self._actions:
            result = self._leave_call(original_node, cst.ensure_type(updated_node, cst.Call))
        elif isinstance(original_node, (cst.Name, cst.Attribute)):
            result = self._leave_mention(original_node, cst.ensure_type(updated_node, type(original_node)))
        elif isinstance(original_node, cst.IfExp):
            result = _simplified(original_node, cst.ensure_type(updated_node, cst.IfExp))
        if original_node in self._dropped or _is_emptied(result) or _assigns_itself(original_node, result):
            return cst.RemoveFromParent()
        action = self._actions.get(original_node)
        written = result if action is None else action(self._writer, original_node, result)
        comments = self._writer.comments(original_node)
        return _commented(written, comments) if comments else written

    def _leave_mention(self, node: cst.Name | cst.Attribute, updated: cst.Name | cst.Attribute) -> cst.BaseExpression:
        if node in self._called:
            return updated  # By `_leave_call`.
        if isinstance(node, cst.Name) and not self._is_loaded(node):
            return updated
        name = self._writer.known(node)
        if name is not None:
            return self._mentioned(node, name)
        if isinstance(node, cst.Attribute):
            rule = self._of_member(node)
            if isinstance(rule, (Rename, Call)):
                return cst.ensure_type(updated, cst.Attribute).with_changes(attr=cst.Name(rule.target))
            if isinstance(rule, Refuse):
                self._writer.refuse(node, f".{node.attr.value}", rule.reason)
            if isinstance(rule, Rewrite) and callable(rule.mention):
                return rule.mention(self._writer, node, updated) or updated
        return updated

    def _mentioned(self, node: cst.Name | cst.Attribute, name: str) -> cst.BaseExpression:
        rule = tables.lookup(name)
        if isinstance(rule, Rewrite):
            written = rule.mention(self._writer, node, node) if callable(rule.mention) else None
            if written is not None:
                return written
            rule = (
                Keep() if callable(rule.mention) else rule.mention or Refuse("It is converted only where it is called.")
            )
        if isinstance(rule, Code):
            self._writer.note(node, name, rule.note)
            return self._writer.code(rule.text)
        if isinstance(rule, Drop):
            rule = Refuse(rule.reason)
        if isinstance(rule, Call) and rule.keywords:
            rule = Refuse(f"Its parameters differ from those of {rule.target}: call it there, or write a lambda.")
        if isinstance(rule, (Rename, Call)):
            self._writer.note(node, name, rule.note)
            return self._writer.renamed(node, rule.target)
        self._writer.leave(node)
        if isinstance(rule, Refuse):
            self._writer.refuse(node, name, rule.reason)
        return node

    def _leave_call(self, node: cst.Call, updated: cst.Call) -> cst.BaseExpression:
        name = self._writer.known(node.func)
        if name is not None:
            rule: Rule | None = tables.lookup(name)
        else:
            rule = self._of_member(node.func) if isinstance(node.func, cst.Attribute) else None
        if rule is None:
            return updated
        shown = name or f".{cst.ensure_type(node.func, cst.Attribute).attr.value}"
        result = self._called_by(rule, shown, node, updated)
        if result is None:
            self._writer.leave(node.func)
            return updated
        return result

    def _called_by(self, rule: Rule, shown: str, node: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
        if isinstance(rule, Rewrite):
            return rule.call(self._writer, node, updated)
        if isinstance(rule, Refuse):
            self._writer.refuse(node, shown, rule.reason)
            return None
        if isinstance(rule, Keep):
            return None
        if isinstance(rule, Code):
            self._writer.refuse(node, shown, "It is a value, and no function that can be called.")
            return None
        if isinstance(rule, Drop):
            return self._dropped_call(rule, shown, node, updated)
        args = self._writer.arguments(rule, shown, node, updated.args) if isinstance(rule, Call) else updated.args
        if args is None:
            return None
        self._writer.note(node, shown, rule.note)
        return updated.with_changes(func=self._callee(node, updated, rule.target), args=args)

    def _dropped_call(self, rule: Drop, shown: str, node: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
        statement = self._script.names.parent(node)
        if not isinstance(statement, cst.Expr):
            self._writer.refuse(node, shown, f"{rule.reason} Its result has no counterpart.")
            return None
        self._writer.note(node, shown, rule.reason)
        self._dropped.add(statement)
        return updated

    def _callee(self, node: cst.Call, updated: cst.Call, target: str) -> cst.BaseExpression:
        """Returns what a call calls under its new name: a method of the same object, or another function."""
        if self._writer.known(node.func) is not None:
            return self._writer.renamed(node.func, target)
        return cst.ensure_type(updated.func, cst.Attribute).with_changes(attr=cst.Name(target))

    def _of_member(self, node: cst.Attribute) -> Rule | None:
        owner = self._script.names.of(node.value)
        if owner is not None and owner.partition(".")[0] in _WRITTEN:
            return None  # It is what a conversion has written, and no object of TensorFlow's.
        family = self._script.kinds.family(node.value)
        return tables.member(family, node.attr.value)

    def _is_loaded(self, node: cst.Name) -> bool:
        contexts = self._script.wrapper.resolve(metadata.ExpressionContextProvider)
        return contexts.get(node) == metadata.ExpressionContext.LOAD and not (
            isinstance(parent := self._script.names.parent(node), cst.Arg) and parent.keyword is node
        )


def _simplified(node: cst.IfExp, updated: cst.IfExp) -> cst.BaseExpression:
    """Returns a choice by what TensorFlow or Keras has, or its value where both have become the same."""
    asked = m.Call(func=m.Name("hasattr"))
    only_asks = all(m.matches(call, asked) for call in m.findall(node.test, m.Call()))
    if not only_asks or node.body.deep_equals(node.orelse) or not updated.body.deep_equals(updated.orelse):
        return updated
    return updated.body.with_changes(lpar=updated.lpar, rpar=updated.rpar) if updated.lpar else updated.body


def _assigns_itself(node: cst.CSTNode, updated: cst.CSTNode) -> bool:
    """Returns whether an assignment has become `x = x`."""
    if not isinstance(updated, cst.Assign) or not isinstance(node, cst.Assign) or len(updated.targets) != 1:
        return False
    target = updated.targets[0].target
    return isinstance(target, cst.Name) and target.deep_equals(updated.value) and not target.deep_equals(node.value)


def _is_emptied(updated: cst.CSTNode) -> bool:
    """Returns whether nothing is left of a line of statements."""
    return isinstance(updated, cst.SimpleStatementLine) and not updated.body


def _commented(result: Result, comments: list[str]) -> Result:
    """Puts comments above a statement."""
    if isinstance(result, cst.FlattenSentinel):
        first, *others = result
        return cst.FlattenSentinel([_commented(first, comments), *others])  # type: ignore[list-item]
    lines = getattr(result, "leading_lines", None)
    if lines is None or isinstance(result, cst.RemovalSentinel):
        return result
    new = [cst.EmptyLine(comment=cst.Comment(text)) for text in comments]
    return result.with_changes(leading_lines=[*lines, *new])
