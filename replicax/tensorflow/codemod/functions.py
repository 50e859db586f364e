"""Finds compiled functions: which `tf.function`s become `rx.function`, and which run in Python.

`rx.function` traces a function's Python once, so that a loop over a dataset, or `next(iterator)`, in it would make each
batch a constant. `strategy.run` compiles by itself; so a function that reads batches loses its decorator, with the
same results. AutoGraph's `if` and `while` over tensors have no counterpart: they are refused where a test is known to
be one.
"""

from __future__ import annotations

from collections.abc import Mapping

import libcst as cst
from libcst import matchers as m

from replicax.tensorflow.codemod.rewriter import Action
from replicax.tensorflow.codemod.script import Script
from replicax.tensorflow.codemod.writer import Writer

_DATASETS = ("tf.data.Dataset", "tf.distribute.DistributedDataset", "tf.experimental.dtensor.DTensorDataset")
_IN_PYTHON = "The function reads batches, so it runs in Python; `strategy.run` compiles each step in it."
_OF_PYTHON = (cst.Is, cst.IsNot, cst.In, cst.NotIn)
_READERS = ("get_next", "get_next_as_optional")


def planned(script: Script) -> Mapping[cst.CSTNode, Action]:
    """Returns what becomes of the decorators and conditions of a script's functions."""
    finder = _Functions(script)
    script.module.visit(finder)
    in_python = finder.in_python()
    actions: dict[cst.CSTNode, Action] = {}
    for function in in_python:
        for decorator in function.decorators:
            if _is_tf_function(script, decorator.decorator):
                actions[decorator] = _removed
    for call, function in finder.wrapped.items():
        if function in in_python:
            actions[call] = _unwrapped
    conditions = _Conditions(script)
    for function in finder.traced(in_python):
        function.body.visit(conditions)
    loops = _Loops(script)
    script.module.visit(loops)
    actions |= dict.fromkeys(loops.found, _counted)
    return actions | dict.fromkeys(conditions.found, _refused_condition)


def _is_tf_function(script: Script, node: cst.BaseExpression) -> bool:
    """Returns whether an expression is `tf.function`, or a call of it that gives a decorator."""
    if isinstance(node, cst.Call):
        return script.names.of(node.func) == "tf.function" and all(arg.keyword is not None for arg in node.args)
    return script.names.of(node) == "tf.function"


class _Functions(cst.CSTVisitor):
    """Collects the functions of a script, and what they do."""

    def __init__(self, script: Script):
        self._script = script
        self._inside: list[cst.FunctionDef] = []
        self._readers: set[cst.FunctionDef] = set()
        self._compiled: set[cst.FunctionDef] = set()
        self._scheduled: set[cst.FunctionDef] = set()
        self._run: set[cst.FunctionDef] = set()
        self._calls: dict[cst.FunctionDef, set[cst.FunctionDef]] = {}
        self.wrapped: dict[cst.Call, cst.FunctionDef] = {}

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self._inside.append(node)
        if any(_is_tf_function(self._script, each.decorator) for each in node.decorators):
            self._compiled.add(node)

    def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:
        self._inside.pop()

    def visit_For(self, node: cst.For) -> None:
        if self._is_dataset(node.iter) or self._is_batch(node):
            self._readers.update(self._inside)

    def visit_Return(self, node: cst.Return) -> None:
        if node.value is not None and self._is_dataset(node.value):
            self._readers.update(self._inside[-1:])

    def visit_Call(self, node: cst.Call) -> None:
        if m.matches(node.func, m.Name("next") | m.Name("iter")) or m.matches(
            node.func, m.Attribute(attr=m.OneOf(*(m.Name(each) for each in _READERS)))
        ):
            self._readers.update(self._inside)
        called = self._definition(node.func)
        if called is not None and self._inside:
            self._calls.setdefault(self._inside[-1], set()).add(called)
        first = self._definition(node.args[0].value) if node.args else None
        if first is None:
            return
        if self._script.names.of(node.func) == "tf.function":
            self.wrapped[node] = first
            self._compiled.add(first)
        elif m.matches(node.func, m.Attribute(attr=m.Name("run") | m.Name("experimental_run_v2"))):
            self._run.add(first)
            if self._inside:
                self._calls.setdefault(self._inside[-1], set()).add(first)
        elif m.matches(node.func, m.Attribute(attr=m.Name("schedule"))):
            self._scheduled.add(first)

    def in_python(self) -> set[cst.FunctionDef]:
        """Returns the compiled functions that read batches, or call one that does: they run in Python."""
        reading = set(self._readers)
        while True:
            callers = {each for each, called in self._calls.items() if called & reading} - reading
            if not callers:
                # Functions that a coordinator schedules may read their worker's batches in a compiled function.
                return (reading & self._compiled) - self._scheduled
            reading |= callers

    def traced(self, in_python: set[cst.FunctionDef]) -> set[cst.FunctionDef]:
        """Returns the functions whose Python runs while a program is traced."""
        found = (self._compiled - in_python) | self._run
        while True:
            called = {each for function in found for each in self._calls.get(function, ())} - found
            if not called:
                return found
            found |= called

    def _is_dataset(self, node: cst.CSTNode) -> bool:
        return any(self._script.kinds.is_a(node, kind) for kind in _DATASETS)

    def _is_batch(self, node: cst.For) -> bool:
        """Returns whether the loop's variable is given to `strategy.run`: then it loops over a dataset."""
        if not isinstance(node.target, cst.Name):
            return False
        runs = m.findall(node.body, m.Call(func=m.Attribute(attr=m.Name("run") | m.Name("experimental_run_v2"))))
        return any(m.findall(each, m.Name(node.target.value)) for each in runs)

    def _definition(self, node: cst.CSTNode) -> cst.FunctionDef | None:
        if isinstance(node, cst.Name):
            found = self._script.kinds.definition(node)
            return found if isinstance(found, cst.FunctionDef) else None
        if m.matches(node, m.Attribute(value=m.Name("self"))):
            return self._script.kinds.method(cst.ensure_type(node, cst.Attribute))
        return None


class _Loops(cst.CSTVisitor):
    """Collects the calls of `tf.range` that loops go through: Python counts there."""

    def __init__(self, script: Script):
        self._script = script
        self.found: list[cst.Call] = []

    def _look(self, node: cst.BaseExpression) -> None:
        if not isinstance(node, cst.Call) or self._script.names.of(node.func) != "tf.range":
            return
        if not any(arg.keyword or arg.star or isinstance(arg.value, cst.Float) for arg in node.args):
            self.found.append(node)

    def visit_For(self, node: cst.For) -> None:
        self._look(node.iter)

    def visit_CompFor(self, node: cst.CompFor) -> None:
        self._look(node.iter)


class _Conditions(cst.CSTVisitor):
    """Collects the statements and expressions that decide by a tensor."""

    def __init__(self, script: Script):
        self._script = script
        self.found: list[cst.CSTNode] = []

    def _look(self, node: cst.CSTNode, test: cst.BaseExpression) -> None:
        if self._is_tensor(test):
            self.found.append(node)

    def _is_tensor(self, test: cst.BaseExpression) -> bool:
        if isinstance(test, cst.BooleanOperation):
            return self._is_tensor(test.left) or self._is_tensor(test.right)
        if isinstance(test, cst.UnaryOperation):
            return self._is_tensor(test.expression)
        if isinstance(test, cst.Comparison) and isinstance(test.comparisons[0].operator, _OF_PYTHON):
            return False
        return self._script.kinds.is_a(test, "tf.Tensor") or self._script.kinds.is_a(test, "tf.Variable")

    def visit_If(self, node: cst.If) -> None:
        self._look(node, node.test)

    def visit_While(self, node: cst.While) -> None:
        self._look(node, node.test)

    def visit_IfExp(self, node: cst.IfExp) -> None:
        self._look(node, node.test)

    def visit_Assert(self, node: cst.Assert) -> None:
        self._look(node, node.test)


def _removed(writer: Writer, node: cst.CSTNode, updated: cst.CSTNode) -> cst.RemovalSentinel:
    writer.note(node, "tf.function", _IN_PYTHON)
    return cst.RemoveFromParent()


def _unwrapped(writer: Writer, node: cst.CSTNode, updated: cst.CSTNode) -> cst.CSTNode:
    writer.note(node, "tf.function", _IN_PYTHON)
    return cst.ensure_type(updated, cst.Call).args[0].value


def _counted(writer: Writer, node: cst.CSTNode, updated: cst.CSTNode) -> cst.CSTNode:
    return cst.ensure_type(updated, cst.Call).with_changes(func=cst.Name("range"))


def _refused_condition(writer: Writer, node: cst.CSTNode, updated: cst.CSTNode) -> cst.CSTNode:
    writer.refuse(
        node,
        "AutoGraph",
        "A tensor decides here, in a compiled function: write it with `keras.ops.where`, `keras.ops.cond` or "
        "`keras.ops.while_loop`.",
    )
    return updated
