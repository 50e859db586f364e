"""Statements and functions of input pipelines: those that go with a conversion, and those that stay TensorFlow's."""

from __future__ import annotations

from collections.abc import Mapping

import libcst as cst
from libcst import matchers as m

from replicax.tensorflow.codemod.rewriter import Action, removed
from replicax.tensorflow.codemod.script import Script

DATASET = "tf.data.Dataset"
OPTIONS = "tf.data.Options"
_AUTOTUNE = ("tf.data.AUTOTUNE", "tf.data.experimental.AUTOTUNE")
#: The features of a record; the functions that parse it go by these.
FEATURES = frozenset(f"tf.io.{name}" for name in ("FixedLenFeature", "VarLenFeature", "FixedLenSequenceFeature"))
#: Methods of datasets that take functions of elements.
TAKING_FUNCTIONS = frozenset(
    ("map", "filter", "flat_map", "interleave", "scan", "take_while", "reduce", "apply", "bucket_by_sequence_length")
)


def planned(script: Script) -> Mapping[cst.CSTNode, Action]:
    """Returns the statements about `tf.data.Options`: without pipelines of TensorFlow's they set nothing."""
    if script.keeps_tf_data:
        return {}
    return dict.fromkeys([*_option_statements(script), *_numbers_of_calls(script)], removed)


def _numbers_of_calls(script: Script) -> list[cst.CSTNode]:
    """Returns the statements `AUTOTUNE = tf.data.AUTOTUNE` of a script that uses the name: its uses are converted."""
    found: list[cst.CSTNode] = []
    for each in m.findall(script.module, m.SimpleStatementLine(body=[m.Assign(targets=[m.AssignTarget(m.Name())])])):
        assign = cst.ensure_type(cst.ensure_type(each, cst.SimpleStatementLine).body[0], cst.Assign)
        name = cst.ensure_type(assign.targets[0].target, cst.Name)
        uses = [use.node for made in script.names.assignments(name) for use in getattr(made, "references", ())]
        if script.names.of(assign.value) in _AUTOTUNE and uses and all(script.names.of(use) for use in uses):
            found.append(each)
    return found


def _option_statements(script: Script) -> list[cst.CSTNode]:
    found: list[cst.CSTNode] = []
    for each in m.findall(script.module, m.SimpleStatementLine(body=[m.Assign()])):
        statement = cst.ensure_type(each, cst.SimpleStatementLine)
        assign = cst.ensure_type(statement.body[0], cst.Assign)
        target: cst.BaseExpression = assign.targets[0].target
        while isinstance(target, cst.Attribute):
            target = target.value
        made = isinstance(assign.value, cst.Call) and script.names.of(assign.value.func) == OPTIONS
        if made or (target is not assign.targets[0].target and script.kinds.of(target) == OPTIONS):
            found.append(statement)
    return found


def kept(script: Script) -> frozenset[cst.CSTNode]:
    """Returns the functions of pipelines that stay TensorFlow's, with those that they call, and their options."""
    if not script.keeps_tf_data:
        return frozenset()
    found: set[cst.CSTNode] = set(_option_statements(script))
    waiting: list[cst.CSTNode] = []
    followed: set[cst.CSTNode] = set()
    for each in m.findall(script.module, m.Call(func=m.Attribute())):
        call = cst.ensure_type(each, cst.Call)
        method = cst.ensure_type(call.func, cst.Attribute)
        of_pipeline = script.kinds.is_a(method.value, DATASET)
        if of_pipeline and method.attr.value in TAKING_FUNCTIONS:
            waiting += [arg.value for arg in call.args]
        name = script.names.of(method) or ""
        if of_pipeline or name.startswith("tf.data.") or name in FEATURES:
            found.update(arg.value for arg in call.args)
    while waiting:
        node = waiting.pop()
        function = script.kinds.definition(node) if isinstance(node, cst.Name) else node
        if isinstance(function, (cst.FunctionDef, cst.Lambda)) and function not in followed:
            followed.add(function)
            waiting += [
                inner.func for inner in m.findall(function, m.Call(func=m.Name())) if isinstance(inner, cst.Call)
            ]
    return frozenset(found | followed)
