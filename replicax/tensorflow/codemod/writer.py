"""Writes what takes the place of a script's expressions, and notes what it needs and what it leaves."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping

import libcst as cst
from libcst import matchers as m

from replicax.tensorflow.codemod import tables
from replicax.tensorflow.codemod.findings import Finding
from replicax.tensorflow.codemod.imports import lengthened, shortened
from replicax.tensorflow.codemod.names import dotted
from replicax.tensorflow.codemod.rules import Call, Rename
from replicax.tensorflow.codemod.script import Script
from replicax.tensorflow.names import Keyword

#: A name of a script that an import or an alias binds, and its canonical name.
Binding = tuple[str, str]


class Writer:
    """The services of a rewriting that rules and actions use; see `rules.Rewriting`."""

    def __init__(self, script: Script, spelled_out: frozenset[Binding] = frozenset()):
        self.script = script
        self.modules: set[str] = set()  # short names of those that the written code needs
        self.converted: set[Binding] = set()  # whose uses stay: the import gives them their new meaning
        self.left: set[Binding] = set()  # that are needed as they are
        self._spelled_out = spelled_out  # whose uses are all written with the new name in full
        self._notes: list[Finding] = []
        self._refused: dict[cst.CSTNode | None, list[tuple[cst.CSTNode, Finding]]] = {}

    # Findings.

    @property
    def findings(self) -> list[Finding]:
        """The places that were not converted, and notes."""
        return [*(finding for refused in self._refused.values() for _, finding in refused), *self._notes]

    def refuse(self, node: cst.CSTNode, name: str, reason: str) -> None:
        """Notes that something is left as it is, and marks its statement with a comment."""
        finding = Finding(self.script.line(node), name, reason)
        self._refused.setdefault(self.script.statement(node), []).append((node, finding))

    def replaces(self, node: cst.CSTNode) -> None:
        """Says that an expression is replaced as a whole: what was found in its parts no longer counts."""
        inside = set(m.findall(node, m.MatchIfTrue(lambda each: True)))
        refused = self._refused.get(self.script.statement(node), [])
        refused[:] = [(at, finding) for at, finding in refused if at not in inside]

    def note(self, node: cst.CSTNode, name: str, reason: str) -> None:
        """Notes what a user should know about something that was converted."""
        if reason:
            self._notes.append(Finding(self.script.line(node), name, reason, "note"))

    def comments(self, node: cst.CSTNode) -> list[str]:
        """Returns the comments that a statement gets, without those that stand above it already."""
        lines = list(getattr(node, "leading_lines", ()))
        if self.script.module.body[:1] == (node,):
            lines += self.script.module.header
        there = {line.comment.value for line in lines if line.comment is not None}
        texts = dict.fromkeys(finding.comment() for _, finding in self._refused.get(node, ()))
        return [text for text in texts if text not in there]

    def leave(self, node: cst.CSTNode) -> None:
        """Says that a part of the script stays as it is, so that its imports are needed."""
        for each in m.findall(node, m.Name()):
            name = self.known(each)
            if name is not None:
                self.left.add((cst.ensure_type(each, cst.Name).value, name))

    # Expressions.

    def known(self, node: cst.CSTNode) -> str | None:
        """Returns the canonical name of TensorFlow's or Keras's that a node is."""
        name = self.script.names.of(node)
        return name if name is not None and (name == "tf" or name.startswith("tf.")) else None

    def target(self, name: str) -> cst.Name | cst.Attribute:
        """Returns the expression of a new name such as `"rx.function"`; its module will be imported."""
        short = shortened(name)
        self.modules.add(short.partition(".")[0])
        expression = cst.parse_expression(short)
        assert isinstance(expression, (cst.Name, cst.Attribute)), name
        return expression

    def code(self, text: str, **parts: cst.BaseExpression) -> cst.BaseExpression:
        """Returns an expression from a template such as `"jnp.sum({x})"`; modules in front of a name are imported."""
        written = {name: f"_replicax_{name}_" for name in parts}
        expression = cst.parse_expression(text.format(**written))
        for node in _chains(expression):
            self.modules.add(node)
        filled = expression.visit(_Filling({written[name]: part for name, part in parts.items()}))
        assert isinstance(filled, cst.BaseExpression), text
        return filled

    def renamed(self, node: cst.BaseExpression, target: str) -> cst.BaseExpression:
        """Returns the new name of an expression: the same expression, if its import will give it the new meaning."""
        parts = dotted(node)
        if parts is not None:
            base, rest = parts
            name = self.script.names.of(base)
            rule = tables.lookup(name) if name is not None and name != "tf" else None
            if name is None or not isinstance(rule, (Rename, Call)) or (base.value, name) in self._spelled_out:
                return self.target(target)
            if ".".join([lengthened(rule.target), *rest]) == lengthened(target):
                self.converted.add((base.value, name))
                return node
        return self.target(target)

    def arguments(self, rule: Call, shown: str, node: cst.Call, args: Iterable[cst.Arg]) -> tuple[cst.Arg, ...] | None:
        """Returns the arguments of a call under their new names; None after a refusal."""
        given: list[cst.Arg] = []
        for place, arg in enumerate(args):
            keyword = arg.keyword.value if arg.keyword is not None else None
            if arg.star and rule.keywords:
                self.refuse(node, shown, f"`{arg.star}` hides which of its arguments are given; write them out.")
                return None
            if keyword is None and not arg.star and rule.order and place < len(rule.order):
                fate = rule.keywords.get(rule.order[place])
                if place >= rule.positional or (fate is not None and not fate.here):
                    keyword = rule.order[place]
            fate = rule.keywords.get(keyword) if keyword is not None else None
            if fate is not None and not fate.here:
                if not _is_accepted(arg.value, fate):
                    self.refuse(node, shown, f"`{keyword}`: {fate.note}")
                    return None
                continue
            given.append(arg if keyword is None else _keyword(arg, fate.here if fate is not None else keyword))
        return _separated(given, bool(node.args) and isinstance(node.args[-1].comma, cst.Comma))


class _Filling(cst.CSTTransformer):
    def __init__(self, parts: Mapping[str, cst.BaseExpression]):
        super().__init__()
        self._parts = parts

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        return self._parts.get(original_node.value, updated_node)


def _chains(expression: cst.BaseExpression) -> set[str]:
    """Returns the first names of the dotted names in an expression."""
    found = set()
    for node in m.findall(expression, m.Attribute()):
        parts = dotted(node)
        if parts is not None:
            found.add(parts[0].value)
    return found


def _is_accepted(value: cst.BaseExpression, fate: Keyword) -> bool:
    if fate.accepted is None:
        return True
    try:
        found = ast.literal_eval(cst.Module([]).code_for_node(value))
    except (ValueError, SyntaxError):
        return False  # No literal: its value is known when the script runs.
    return any(found == each and type(found) is type(each) for each in fate.accepted)


def _keyword(arg: cst.Arg, name: str) -> cst.Arg:
    equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    return arg.with_changes(keyword=cst.Name(name), equal=equal if arg.keyword is None else arg.equal)


def _separated(args: list[cst.Arg], trailing: bool) -> tuple[cst.Arg, ...]:
    """Returns arguments with commas between them, and behind the last if there was one."""
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    found = [arg if isinstance(arg.comma, cst.Comma) else arg.with_changes(comma=comma) for arg in args]
    if found and not trailing:
        found[-1] = found[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
    return tuple(found)
