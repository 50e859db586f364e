"""Where the gradients of a tape are summed over the replicas.

In TensorFlow a tape gives the gradients of one replica, and `apply_gradients` sums them. Here `rx.value_and_grad` sums.
That is the same if they go to `apply_gradients` as they are. If something is done with them before, such as clipping,
it is done to each replica's own, and the sum is taken where `apply_gradients` took it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import libcst as cst
from libcst import matchers as m

from replicax.tensorflow.codemod.reductions import inside, on_the_way
from replicax.tensorflow.codemod.rewriter import Action
from replicax.tensorflow.codemod.script import Script
from replicax.tensorflow.codemod.tapes import Tape
from replicax.tensorflow.codemod.writer import Writer

#: Keywords of `apply_gradients` that leave the sum to the script, and the value that does.
_OWN_SUM = {"experimental_aggregate_gradients": "False", "skip_gradients_aggregation": "True"}

_TWICE = (
    "The gradients are reduced by the script, and `apply_gradients` sums the results once more, so that they are as "
    "many times larger as there are replicas. If the script means to reduce them itself, give `apply_gradients` "
    "`skip_gradients_aggregation=True`; otherwise leave out its own reduction."
)


class Use(NamedTuple):
    """How a script uses the gradients of a tape."""

    summed: bool  # whether `rx.value_and_grad` may sum them
    actions: dict[cst.CSTNode, Action]  # otherwise, for the calls of `apply_gradients`
    problem: str = ""  # why the tape cannot be converted


def use_of(script: Script, tape: Tape) -> Use:
    """Returns how the gradients of a tape are used, in the function around it."""
    around = script.function(tape.block) or script.module
    calls = m.findall(around, m.Call(func=m.Attribute(attr=m.Name("apply_gradients"))))
    updates = [cst.ensure_type(each, cst.Call) for each in calls]
    if _reduces_before(script, tape, [each for each in updates if not _sums_itself(each)]):
        return Use(False, {}, _TWICE)
    targets = set(_names(tape.assigned_to()))
    mentions = [each for each in _names(around) if each.value in {n.value for n in targets} and each not in targets]
    updated = {gradients for each in updates if (gradients := _gradients(each)) is not None}
    inline = any(tape.gradient is each for each in updated) or m.matches(
        tape.gradient.func, m.Attribute(attr=m.Name("minimize"))
    )
    direct = set(mentions) <= updated and (bool(mentions) or inline)
    own_sum = any(_sums_itself(each) for each in updates)
    if not script.mentions("tf.distribute") or (direct and not own_sum):
        return Use(True, {each: _without_keyword for each in updates if own_sum})
    actions: dict[cst.CSTNode, Action] = {}
    for each in updates:
        if _sums_itself(each):
            actions[each] = _without_keyword
        elif _gradients(each) is None:
            reason = "The gradients are changed before `apply_gradients`: give it `zip(gradients, variables)`."
            return Use(False, {}, reason)
        else:
            actions[each] = _summing
    return Use(False, actions)


def _reduces_before(script: Script, tape: Tape, updates: Sequence[cst.Call]) -> bool:
    """Returns whether the script reduces gradients that `apply_gradients` sums."""
    parent = script.names.parent(tape.block)
    statements = list(getattr(parent, "body", ()))
    behind = [each for each in statements[statements.index(tape.block) + 1 :] if each is not tape.statement]
    given = [gradients for each in updates if (gradients := _gradients(each)) is not None]
    within = any(inside(script, each) for each in given)
    return within or bool(on_the_way(script, behind, [each.value for one in given for each in _names(one)]))


def _names(node: cst.CSTNode | None) -> list[cst.Name]:
    return [] if node is None else [cst.ensure_type(each, cst.Name) for each in m.findall(node, m.Name())]


def _pairs(update: cst.Call) -> cst.Call | None:
    """Returns `zip(...)` of `apply_gradients(zip(...))` or `apply_gradients(list(zip(...)))`."""
    value = update.args[0].value if update.args else None
    if isinstance(value, cst.Call) and m.matches(value.func, m.Name("list")) and len(value.args) == 1:
        value = value.args[0].value
    return value if isinstance(value, cst.Call) and m.matches(value.func, m.Name("zip")) and value.args else None


def _gradients(update: cst.Call) -> cst.BaseExpression | None:
    pairs = _pairs(update)
    return None if pairs is None else pairs.args[0].value


def _sums_itself(update: cst.Call) -> bool:
    return any(_is_own_sum(arg) for arg in update.args)


def _is_own_sum(arg: cst.Arg) -> bool:
    return arg.keyword is not None and m.matches(arg.value, m.Name(_OWN_SUM.get(arg.keyword.value, "")))


def _without_keyword(writer: Writer, node: cst.CSTNode, updated: cst.CSTNode) -> cst.CSTNode:
    call = cst.ensure_type(updated, cst.Call)
    left = [arg for arg in call.args if arg.keyword is None or arg.keyword.value not in _OWN_SUM]
    return call.with_changes(args=[*left[:-1], left[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)])


def _summing(writer: Writer, node: cst.CSTNode, updated: cst.CSTNode) -> cst.CSTNode:
    call = cst.ensure_type(_without_keyword(writer, node, updated), cst.Call)
    gradients = _gradients(call)
    assert gradients is not None, "`use_of` has looked."
    summed = writer.code('rx.get_replica_context().all_reduce("sum", {gradients})', gradients=gradients)
    return call.deep_replace(gradients, summed)
