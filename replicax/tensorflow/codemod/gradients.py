"""Writes tapes as loss functions: `loss, gradients = rx.value_and_grad(loss_fn, variables)()`."""

from __future__ import annotations

from collections.abc import Mapping

import libcst as cst
from libcst import matchers as m

from replicax.contracts.variable_access import free_name
from replicax.tensorflow.codemod.reading import Flow
from replicax.tensorflow.codemod.rewriter import Action, removed
from replicax.tensorflow.codemod.script import Script
from replicax.tensorflow.codemod.summing import Use, use_of
from replicax.tensorflow.codemod.tapes import Tape, Untaped, tape_calls, tapes
from replicax.tensorflow.codemod.writer import Writer


def planned(script: Script) -> Mapping[cst.CSTNode, Action]:
    """Returns what becomes of a script's tapes, by node."""
    actions: dict[cst.CSTNode, Action] = {}
    taken = set(Flow.of([script.module]).reads) | set(Flow.of([script.module]).assigned)
    for tape in tapes(script):
        for call in tape_calls(script, tape.block):
            actions[call] = _as_it_is
        if isinstance(tape, Untaped):
            actions[tape.block] = _refusal(tape.reason)
            continue
        use = use_of(script, tape)
        if use.problem:
            actions[tape.block] = _refusal(use.problem)
        else:
            actions |= _Written(tape, use, taken).actions()
    return actions


def _as_it_is(writer: Writer, node: cst.CSTNode, updated: cst.CSTNode) -> cst.CSTNode:
    return updated


def _refusal(reason: str) -> Action:
    def refused(writer: Writer, node: cst.CSTNode, updated: cst.CSTNode) -> cst.CSTNode:
        writer.refuse(node, "tf.GradientTape", reason)
        return updated

    return refused


class _Written:
    """The statements that take a tape's place."""

    def __init__(self, tape: Tape, use: Use, taken: set[str]):
        self._tape = tape
        self._function = free_name("loss_fn", taken)
        self._use = use
        self._assigned = tape.assigned_to()
        self._target = self._assigned or cst.Name(free_name("gradients", taken))

    def actions(self) -> dict[cst.CSTNode, Action]:
        """Returns what becomes of the block, the statement of the gradient, and statements of the tape alone."""
        dropped: dict[cst.CSTNode, Action] = dict.fromkeys(self._tape.dropped, removed)
        found: dict[cst.CSTNode, Action] = {self._tape.block: self._of_block, self._tape.statement: self._of_statement}
        return {**found, **dropped, **self._use.actions, self._tape.gradient: _as_it_is}

    def _of_block(self, writer: Writer, node: cst.CSTNode, updated: cst.CSTNode) -> cst.FlattenSentinel[cst.CSTNode]:
        block = cst.ensure_type(updated, cst.With)
        results = [cst.Name(self._tape.loss), *([self._aux()] if self._tape.results else [])]
        value: cst.BaseExpression = cst.Tuple([cst.Element(each) for each in results], lpar=(), rpar=())
        value = value if len(results) > 1 else results[0]
        body = cst.ensure_type(block.body, cst.IndentedBlock)
        returned = cst.SimpleStatementLine([cst.Return(value)])
        function = cst.FunctionDef(
            cst.Name(self._function),
            cst.Parameters([cst.Param(cst.Name(each), default=cst.Name(each)) for each in self._tape.given]),
            body.with_changes(body=[*body.body, returned]),
            leading_lines=block.leading_lines,
        )
        early = [self._computed(writer, self._tape.sources.deep_clone())] if self._tape.early else []
        return cst.FlattenSentinel([function, *early])

    def _of_statement(
        self, writer: Writer, node: cst.CSTNode, updated: cst.CSTNode
    ) -> cst.SimpleStatementLine | cst.FlattenSentinel[cst.CSTNode] | cst.RemovalSentinel:
        line = cst.ensure_type(updated, cst.SimpleStatementLine)
        call = _call_in(line, self._tape.name)
        computed = [] if self._tape.early else [self._computed(writer, _sources(call))]
        if self._assigned is not None:
            if not computed:
                return cst.RemoveFromParent()
            return computed[0].with_changes(
                leading_lines=line.leading_lines, trailing_whitespace=line.trailing_whitespace
            )
        if m.matches(call.func, m.Attribute(attr=m.Name("minimize"))):
            owner = cst.ensure_type(call.func, cst.Attribute)
            pairs = writer.code("zip({g}, {v})", g=self._name(), v=_sources(call))
            new: cst.BaseExpression = cst.Call(owner.with_changes(attr=cst.Name("apply_gradients")), [cst.Arg(pairs)])
        else:
            new = self._name()
        rest = cst.ensure_type(line.deep_replace(call, new), cst.SimpleStatementLine)
        if not computed:
            return rest
        first = computed[0].with_changes(leading_lines=rest.leading_lines)
        return cst.FlattenSentinel([first, rest.with_changes(leading_lines=[])])

    def _computed(self, writer: Writer, sources: cst.BaseExpression) -> cst.SimpleStatementLine:
        """Returns the statement that computes the loss and the gradients."""
        tape = self._tape
        aux = ", has_aux=True" if tape.results else ""
        own = "" if self._use.summed else ", aggregation=None"
        with_loss = tape.loss_is_used
        function = "value_and_grad" if with_loss else "grad"
        value = writer.code(f"rx.{function}({self._function}, {{sources}}{aux}{own})()", sources=sources)
        loss, target = cst.Name(tape.loss), _bracketed(self._target)
        if not tape.results:
            parts: list[cst.BaseExpression] = [loss, target] if with_loss else [self._target]
        elif with_loss:
            parts = [_bracketed(cst.Tuple([cst.Element(loss), cst.Element(self._aux())])), target]
        else:
            parts = [target, self._aux()]
        left = cst.Tuple([cst.Element(each) for each in parts], lpar=(), rpar=()) if len(parts) > 1 else parts[0]
        assigned = cst.Assign([cst.AssignTarget(cst.ensure_type(left, type(left)))], value)  # type: ignore[arg-type]
        return cst.SimpleStatementLine([assigned])

    def _aux(self) -> cst.BaseExpression:
        names = [cst.Name(each) for each in self._tape.results]
        return names[0] if len(names) == 1 else cst.Tuple([cst.Element(each) for each in names])

    def _name(self) -> cst.Name:
        return cst.ensure_type(self._target, cst.Name)


def _bracketed(target: cst.BaseExpression) -> cst.BaseExpression:
    """Returns a tuple in brackets, and anything else as it is."""
    if isinstance(target, cst.Tuple) and not target.lpar:
        return target.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return target


def _call_in(line: cst.SimpleStatementLine, name: str) -> cst.Call:
    """Returns the call that takes the gradient, in the rewritten statement."""
    gradient = m.Call(func=m.Attribute(value=m.Name(name), attr=m.Name("gradient")))
    minimize = m.Call(func=m.Attribute(attr=m.Name("minimize")))
    return cst.ensure_type(m.findall(line, gradient | minimize)[0], cst.Call)


def _sources(call: cst.Call) -> cst.BaseExpression:
    named = {arg.keyword.value: arg.value for arg in call.args if arg.keyword is not None}
    return named.get("sources") or named.get("var_list") or call.args[1].value
