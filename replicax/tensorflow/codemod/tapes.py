"""Finds the tapes of a script that can become loss functions, and says why others cannot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import libcst as cst
from libcst import matchers as m

from replicax.tensorflow.codemod.reading import Flow, Leaving, read_first
from replicax.tensorflow.codemod.reductions import on_the_way
from replicax.tensorflow.codemod.script import Script

#: Arguments of `tf.GradientTape` that change nothing for one gradient of variables.
_ACCEPTED = {"persistent": ("True", "False"), "watch_accessed_variables": ("True",)}

_REDUCED_LOSS = (
    "`{loss}` comes from what the replicas reduce together with `{call}`. TensorFlow adds up the gradients of all "
    "replicas there, so that they are as many times larger as there are replicas; here each example counts once. "
    "Differentiate each replica's own part of the loss, reduce what is reported behind the block, and adapt the "
    "learning rate if it was found with TensorFlow's gradients."
)
_COMPANY = "Another tape stays, which has the same name, or stands inside of or around this one."


class Tape(NamedTuple):
    """A `with tf.GradientTape() as tape:` that becomes a function."""

    block: cst.With
    name: str
    gradient: cst.Call  # `tape.gradient(...)` or `optimizer.minimize(..., tape=tape)`
    statement: cst.SimpleStatementLine  # of that call, behind the block
    loss: str  # its name, which the block assigns
    sources: cst.BaseExpression  # what the loss is differentiated with respect to
    results: tuple[str, ...]  # names that the block assigns and that are used behind it, without the loss
    loss_is_used: bool  # behind the block
    given: tuple[str, ...]  # names from before the block that it may read before it assigns them
    early: bool  # whether gradients are computed where the block stands, since what follows uses its results
    dropped: tuple[cst.CSTNode, ...]  # statements that mean nothing without the tape

    def assigned_to(self) -> cst.BaseExpression | None:
        """Returns the target of `target = tape.gradient(...)`; None if the call stands in a larger expression."""
        assign = self.statement.body[0]
        if isinstance(assign, cst.Assign) and assign.value is self.gradient and len(assign.targets) == 1:
            return assign.targets[0].target
        return None


class Untaped(NamedTuple):
    """A tape that stays."""

    block: cst.With
    reason: str  # a sentence, and what to do


class _Stays(Exception):
    """Why a tape stays."""


def tapes(script: Script) -> list[Tape | Untaped]:
    """Returns the tapes of a script."""
    finder = _Finder(script)
    script.module.visit(finder)
    found = [_examined(script, block) for block in finder.found]
    staying = {id(each.block) for each in found if isinstance(each, Untaped)}
    beside = {id(each): _beside(script, each, finder.found) for each in finder.found}
    while more := {one for one, others in beside.items() if others & staying} - staying:
        staying |= more
    return [
        Untaped(each.block, _COMPANY) if isinstance(each, Tape) and id(each.block) in staying else each
        for each in found
    ]


def _beside(script: Script, block: cst.With, blocks: Sequence[cst.With]) -> set[int]:
    """Returns the blocks that share a tape's name, or stand inside of or around a block: all are converted, or none."""
    bound = {name for item in block.items if item.asname and isinstance(name := item.asname.name, cst.Name)}
    places = {getattr(each, "node", None) for name in bound for each in script.names.assignments(name)}
    found = set()
    for other in blocks:
        shares = any(item.asname is not None and item.asname.name in places for item in other.items)
        if other is not block and (shares or _is_inside(script, other, block) or _is_inside(script, block, other)):
            found.add(id(other))
    return found


def _is_inside(script: Script, node: cst.CSTNode, outer: cst.CSTNode) -> bool:
    parent = script.names.parent(node)
    while parent is not None and parent is not outer:
        parent = script.names.parent(parent)
    return parent is outer


def tape_calls(script: Script, block: cst.With) -> list[cst.Call]:
    """Returns the calls of `tf.GradientTape` in the head of a `with`."""
    items = [item.item for item in block.items]
    return [each for each in items if isinstance(each, cst.Call) and script.names.of(each.func) == "tf.GradientTape"]


class _Finder(cst.CSTVisitor):
    def __init__(self, script: Script):
        self._script = script
        self.found: list[cst.With] = []

    def visit_With(self, node: cst.With) -> None:
        if tape_calls(self._script, node):
            self.found.append(node)


def _examined(script: Script, block: cst.With) -> Tape | Untaped:
    try:
        return _tape(script, block)
    except _Stays as why:
        return Untaped(block, str(why))


def _tape(script: Script, block: cst.With) -> Tape:
    name = _name(block)
    body = _statements(block.body)
    _check_body(body)
    around = _around(script, block)
    siblings = _statements(script.names.parent(block))
    behind = siblings[siblings.index(block) + 1 :]
    gradient, statement, dropped = _gradient(script, name, block, behind)
    loss, sources = _loss_and_sources(gradient)
    flow = Flow.of(body)
    if loss not in flow.assigned:
        raise _Stays(f"`{loss}` is not computed in the block: move its computation there.")
    reduced = on_the_way(script, body, [loss])
    if reduced:
        call = cst.ensure_type(reduced[0].func, cst.Attribute).attr.value
        raise _Stays(_REDUCED_LOSS.format(loss=loss, call=call))
    between = behind[: behind.index(statement)]
    middle = Flow.of([each for each in between if each not in dropped])
    if loss in middle.assigned:
        raise _Stays(f"`{loss}` is assigned again before its gradient is taken: give that another name.")
    read_of_sources = set(Flow.of([sources]).reads)
    if read_of_sources & set(flow.assigned):
        raise _Stays("The variables are made in the block: make them before it.")
    used = _used_outside(around, block, gradient)
    results = tuple(each for each in dict.fromkeys(flow.assigned) if each in used and each != loss)
    early = bool((set(middle.reads) | set(middle.assigned)) & {loss, *results})
    if early and read_of_sources & set(middle.assigned):
        raise _Stays("The variables are made behind the block: make them before it.")
    before = Flow.of(siblings[: siblings.index(block)])
    parameters = {each.name.value for each in _parameters(around)}
    given = tuple(sorted(read_first(body) & (set(before.assigned) | parameters)))
    return Tape(block, name, gradient, statement, loss, sources, results, loss in used, given, early, dropped)


def _name(block: cst.With) -> str:
    if len(block.items) != 1:
        raise _Stays(
            "Several tapes, or other managers, share one `with`: write one `rx.value_and_grad(loss_fn, variables)()` "
            "for each loss."
        )
    (item,) = block.items
    if item.asname is None or not isinstance(item.asname.name, cst.Name):
        raise _Stays("The tape has no name: it records nothing that is used.")
    for arg in cst.ensure_type(item.item, cst.Call).args:
        keyword = arg.keyword.value if arg.keyword is not None else "persistent"
        if cst.Module([]).code_for_node(arg.value) not in _ACCEPTED.get(keyword, ()):
            raise _Stays(f"`{keyword}` has no counterpart: `rx.value_and_grad` differentiates for the given variables.")
    return item.asname.name.value


def _check_body(body: Sequence[cst.CSTNode]) -> None:
    leaving = Leaving(body)
    if leaving.leaves:
        raise _Stays(f"The block is left by `{leaving.leaves[0]}`; a loss function cannot do that.")
    if leaving.declares:
        raise _Stays("`global` and `nonlocal` stand in the block: move them before it.")


def _gradient(
    script: Script, name: str, block: cst.With, behind: Sequence[cst.BaseStatement]
) -> tuple[cst.Call, cst.SimpleStatementLine, tuple[cst.CSTNode, ...]]:
    """Returns the one call that takes the gradient, its statement, and statements that are of the tape only."""
    dropped: list[cst.CSTNode] = []
    found: list[tuple[cst.Call, cst.CSTNode | None]] = []
    for mention in _mentions(script, block, name, _region(block, name, behind)):
        statement = script.statement(mention)
        call = _call_around(script, mention)
        if isinstance(statement, cst.SimpleStatementLine) and m.matches(statement.body[0], m.Del()):
            dropped.append(statement)
        elif call is not None and _is_gradient(call, name):
            found.append((call, statement))
        elif call is not None and m.matches(call.func, m.Attribute(attr=m.Name("watch"))):
            if not _watches_variables(script, call):
                raise _Stays("It watches a tensor: differentiate with `jax.value_and_grad`, the tensor as an argument.")
            dropped.append(statement or call)
        else:
            raise _Stays("The tape is used otherwise than for one gradient, `tape.gradient(loss, variables)`.")
    if len(found) != 1:
        raise _Stays(
            f"It takes {len(found) or 'no'} gradients: write `rx.value_and_grad(loss_fn, variables)()` for each loss."
        )
    call, statement = found[0]
    if not isinstance(statement, cst.SimpleStatementLine) or statement not in behind:
        raise _Stays("The gradient is not taken in a statement behind the block, beside it: take it there.")
    return call, statement, tuple(dropped)


def _call_around(script: Script, mention: cst.Name) -> cst.Call | None:
    """Returns the call of a method of a name, or the call that it is an argument of."""
    parent = script.names.parent(mention)
    if isinstance(parent, cst.Attribute):
        outer = script.names.parent(parent)
        return outer if isinstance(outer, cst.Call) and outer.func is parent else None
    outer = script.names.parent(parent) if isinstance(parent, cst.Arg) else None
    return outer if isinstance(outer, cst.Call) else None


def _is_gradient(call: cst.Call, name: str) -> bool:
    return m.matches(call.func, m.Attribute(value=m.Name(name), attr=m.Name("gradient"))) or (
        m.matches(call.func, m.Attribute(attr=m.Name("minimize")))
        and any(arg.keyword is not None and arg.keyword.value == "tape" for arg in call.args)
    )


def _watches_variables(script: Script, call: cst.Call) -> bool:
    return bool(call.args) and (
        script.kinds.is_a(call.args[0].value, "tf.Variable")
        or m.matches(call.args[0].value, m.Attribute(attr=m.Name("trainable_variables")))
    )


def _loss_and_sources(call: cst.Call) -> tuple[str, cst.BaseExpression]:
    is_minimize = m.matches(call.func, m.Attribute(attr=m.Name("minimize")))
    names = ("loss", "var_list") if is_minimize else ("target", "sources")
    given = dict(zip(names, (arg.value for arg in call.args if arg.keyword is None), strict=False))
    given |= {arg.keyword.value: arg.value for arg in call.args if arg.keyword is not None}
    given.pop("tape", None)
    if given.keys() != set(names):
        others = sorted(given.keys() - set(names))
        raise _Stays(f"`{', '.join(others)}` has no counterpart." if others else "It does not say what of what.")
    loss, sources = (given[each] for each in names)
    if not isinstance(loss, cst.Name):
        raise _Stays("The loss is an expression: compute it in the block, under a name.")
    return loss.value, sources


def _around(script: Script, node: cst.CSTNode) -> cst.CSTNode:
    """Returns the function that a statement stands in, or the script."""
    return script.function(node) or script.module


def _parameters(around: cst.CSTNode) -> Sequence[cst.Param]:
    if not isinstance(around, cst.FunctionDef):
        return ()
    return (*around.params.params, *around.params.kwonly_params, *around.params.posonly_params)


def _statements(block: cst.CSTNode | None) -> list[cst.BaseStatement]:
    body = getattr(block, "body", ())
    if not isinstance(block, (cst.IndentedBlock, cst.Module)):
        raise _Stays("It stands on one line with another statement: give it lines of its own.")
    return list(body)


def _region(block: cst.With, name: str, behind: Sequence[cst.BaseStatement]) -> list[cst.BaseStatement]:
    """Returns a block and what follows, up to another one whose tape has the same name."""
    others = [at for at, each in enumerate(behind) if isinstance(each, cst.With) and _binds(each, name)]
    return [block, *behind[: min(others, default=len(behind))]]


def _binds(block: cst.With, name: str) -> bool:
    return any(m.matches(item, m.WithItem(asname=m.AsName(name=m.Name(name)))) for item in block.items)


def _mentions(script: Script, block: cst.With, name: str, region: Sequence[cst.CSTNode]) -> list[cst.Name]:
    """Returns the mentions of a block's tape; the tape stays if there are others elsewhere."""
    bound: set[cst.BaseExpression] = {item.asname.name for item in block.items if item.asname is not None}
    inside = [each for part in region for each in m.findall(part, m.Name(name)) if each not in bound]
    found = [cst.ensure_type(each, cst.Name) for each in inside if _may_be(script, each, bound)]
    everywhere = [each for each in m.findall(script.module, m.Name(name)) if _may_be(script, each, bound)]
    others = [each for each in everywhere if each not in inside and each not in bound]
    for each in others:
        if len(script.names.assignments(cst.ensure_type(each, cst.Name))) == 1:
            raise _Stays("The tape is used far from its block: take the gradient behind the block.")
    return found


def _may_be(script: Script, node: cst.CSTNode, bound: set[cst.BaseExpression]) -> bool:
    if isinstance(parent := script.names.parent(node), cst.Attribute) and parent.attr is node:
        return False
    assignments = script.names.assignments(cst.ensure_type(node, cst.Name))
    return any(getattr(each, "node", None) in bound for each in assignments)


def _used_outside(around: cst.CSTNode, block: cst.With, gradient: cst.Call) -> set[str]:
    """Returns the names that are read in the function, or script, around a block, outside of the block."""
    reads = Counter(Flow.of([around.body] if isinstance(around, cst.FunctionDef) else [around]).reads)
    reads.subtract(Flow.of([block]).reads)
    reads.subtract(Flow.of([gradient]).reads)
    return {name for name, count in reads.items() if count > 0}
