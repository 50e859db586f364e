"""Finds what is reduced over the replicas on the way to a value: the sum of a loss, or of gradients, by the script."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import libcst as cst
from libcst import matchers as m

from replicax.tensorflow.codemod.reading import Flow
from replicax.tensorflow.codemod.script import Script

_REDUCED = m.Call(func=m.Attribute(attr=m.OneOf(*(m.Name(each) for each in ("all_reduce", "all_gather")))))


def on_the_way(script: Script, statements: Sequence[cst.CSTNode], names: Iterable[str]) -> list[cst.Call]:
    """Returns the reductions whose results reach names, in the order of the script."""
    wanted, found = set(names), list[cst.Call]()
    for statement in reversed(statements):  # A loop or a condition counts as a whole.
        flow = Flow.of([statement])
        if wanted & set(flow.assigned):
            wanted |= set(flow.reads)
            found = [*inside(script, statement), *found]
    return found


def inside(script: Script, node: cst.CSTNode) -> list[cst.Call]:
    """Returns the reductions in a part of a script, and in the functions of the script that it calls."""
    return list(_inside(script, node, set()))


def _inside(script: Script, node: cst.CSTNode, seen: set[cst.CSTNode]) -> Iterator[cst.Call]:
    for each in m.findall(node, m.Call()):
        call = cst.ensure_type(each, cst.Call)
        if _is_stopped(script, call, node):
            continue
        if m.matches(call, _REDUCED):
            yield call
            continue
        called = _definition(script, call.func)
        if called is not None and called not in seen:
            seen.add(called)
            yield from _inside(script, called, seen)


def _definition(script: Script, func: cst.BaseExpression) -> cst.FunctionDef | None:
    if isinstance(func, cst.Name):
        found = script.kinds.definition(func)
        return found if isinstance(found, cst.FunctionDef) else None
    is_own = m.matches(func, m.Attribute(value=m.Name("self")))
    return script.kinds.method(cst.ensure_type(func, cst.Attribute)) if is_own else None


def _is_stopped(script: Script, node: cst.CSTNode, outer: cst.CSTNode) -> bool:
    parent: cst.CSTNode | None = node
    while parent is not None and parent is not outer:
        if isinstance(parent, cst.Call) and script.names.of(parent.func) == "tf.stop_gradient":
            return True
        parent = script.names.parent(parent)
    return False
