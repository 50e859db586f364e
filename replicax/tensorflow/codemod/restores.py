"""`expect_partial()`: a restore says itself whether it may be partial, since it compares the names at once."""

from __future__ import annotations

from collections.abc import Mapping

import libcst as cst
from libcst import matchers as m

from replicax.tensorflow.codemod.rewriter import Action, removed
from replicax.tensorflow.codemod.script import Script
from replicax.tensorflow.codemod.tensors import restores, with_partial
from replicax.tensorflow.codemod.writer import Writer

_EXPECTS = m.Expr(value=m.Call(func=m.Attribute(value=m.Name(), attr=m.Name("expect_partial"))))


def planned(script: Script) -> Mapping[cst.CSTNode, Action]:
    """Returns what becomes of `status = checkpoint.restore(path)` and `status.expect_partial()`."""
    actions: dict[cst.CSTNode, Action] = {}
    for node in m.findall(script.module, _EXPECTS):
        call = cst.ensure_type(cst.ensure_type(node, cst.Expr).value, cst.Call)
        name = cst.ensure_type(cst.ensure_type(call.func, cst.Attribute).value, cst.Name)
        values = [script.names.assigned_value(each) for each in script.names.assignments(name)]
        if values and all(value is not None and restores(value) for value in values):
            assigns = [script.names.parent(value) for value in values if value is not None]
            actions |= {each: _made_partial for each in assigns if isinstance(each, cst.Assign)}
            actions[node] = removed
    return actions


def _made_partial(writer: Writer, node: cst.CSTNode, updated: cst.CSTNode) -> cst.CSTNode:
    assign = cst.ensure_type(updated, cst.Assign)
    return assign.with_changes(value=with_partial(cst.ensure_type(assign.value, cst.Call)))
