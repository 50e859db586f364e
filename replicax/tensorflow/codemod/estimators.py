"""Model functions and hooks of `tf.estimator`: what the training updates with, and how losses are put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import libcst as cst
from libcst import matchers as m

from replicax.tensorflow.codemod.adapting import is_none
from replicax.tensorflow.codemod.rewriter import Action, Result, removed
from replicax.tensorflow.codemod.script import Script
from replicax.tensorflow.codemod.writer import Writer

SPECS = ("tf.estimator.EstimatorSpec", "tf.compat.v1.estimator.EstimatorSpec")
HOOKS = ("tf.estimator.SessionRunHook", "tf.train.SessionRunHook", "tf.compat.v1.train.SessionRunHook")
_TRAIN_OP = (
    "`train_op` is converted if it is `optimizer.minimize(loss)` of the same loss: give `optimizer=`, or a function "
    "that updates."
)
_REDUCTION = (
    "Whether the loss is a mean over rows or a sum is not seen here: give rx.estimator.EstimatorSpec "
    "`loss_reduction='mean'` or `'sum'`."
)
_SCAFFOLD = "There is no session, and no scaffold: checkpoints have all variables of the model function."
#: Methods of a `SessionRunHook`: the name here, and the parameters that are dropped.
METHODS = {"begin": "begin", "before_run": "before_step", "after_run": "after_step", "end": "end"}


def planned(script: Script) -> Mapping[cst.CSTNode, Action]:
    """Returns what becomes of the specs and hooks of a script."""
    actions: dict[cst.CSTNode, Action] = {}
    for each in m.findall(script.module, m.Call()):
        call = cst.ensure_type(each, cst.Call)
        if script.names.of(call.func) in SPECS:
            actions.update(_of_spec(script, call))
    for each in m.findall(script.module, m.ClassDef()):
        definition = cst.ensure_type(each, cst.ClassDef)
        if any(script.names.of(base.value) in HOOKS for base in definition.bases):
            actions.update(_of_hook(definition))
    return actions


def _of_spec(script: Script, call: cst.Call) -> dict[cst.CSTNode, Action]:
    given = {arg.keyword.value: arg.value for arg in call.args if arg.keyword is not None}
    if any(arg.star for arg in call.args) or len([arg for arg in call.args if arg.keyword is None]) > 1:
        return {call: _refused("It is converted with keywords behind the mode only.")}
    if not is_none(given.get("scaffold")):
        return {call: _refused(_SCAFFOLD)}
    train_op = given.get("train_op")
    if is_none(train_op):
        return {call: _spec(None, None, {})}
    minimized = _assigned(script, train_op)
    if minimized is None or not _minimizes(minimized, given.get("loss")):
        return {call: _refused(_TRAIN_OP)}
    reduction = loss_reduction(script, call, given.get("loss"))
    if reduction is None:
        return {call: _refused(_REDUCTION)}
    inline = minimized is train_op
    optimizer = cst.ensure_type(minimized.func, cst.Attribute).value
    if not inline and not isinstance(optimizer, (cst.Name, cst.Attribute)):
        return {call: _refused(_TRAIN_OP)}
    found: dict[cst.CSTNode, Action] = {call: _spec(train_op, None if inline else optimizer, reduction)}
    statement = script.statement(minimized)
    if not inline and statement is not None:
        found[statement] = removed
    return found


def _assigned(script: Script, node: cst.BaseExpression | None) -> cst.Call | None:
    """Returns the call that an expression is, or is assigned once."""
    if isinstance(node, cst.Name):
        values = [script.names.assigned_value(each) for each in script.names.assignments(node)]
        node = values[0] if len(values) == 1 else None
    return node if isinstance(node, cst.Call) else None


def _minimizes(call: cst.Call, loss: cst.BaseExpression | None) -> bool:
    if not m.matches(call.func, m.Attribute(attr=m.Name("minimize"))) or not call.args or loss is None:
        return False
    first, *others = call.args
    extra = [arg.keyword.value if arg.keyword is not None else "global_step" for arg in others]
    same = cst.Module([]).code_for_node(first.value) == cst.Module([]).code_for_node(loss)
    return same and set(extra) <= {"global_step", "name"}


def loss_reduction(script: Script, call: cst.Call, loss: cst.BaseExpression | None) -> dict[str, str] | None:
    """Returns the keyword that says how the losses of replicas are combined; None if it cannot be determined."""
    if isinstance(loss, cst.Name):
        values = [(script.names.assigned_value(each)) for each in script.names.assignments(loss)]
        if not values or any(value is None for value in values):
            return None
        # The last assignment before the spec counts.
        before = [value for value in values if value is not None and script.line(value) < script.line(call)]
        loss = max(before, key=script.line) if before else None
    if loss is None:
        return None
    names = {script.names.of(cst.ensure_type(each, cst.Call).func) or "" for each in m.findall(loss, m.Call())}
    if names & {"tf.reduce_sum", "tf.math.reduce_sum", "tf.nn.compute_average_loss"}:
        return {"loss_reduction": "sum"}
    means = ("tf.compat.v1.losses.", "tf.losses.")
    is_mean = names & {"tf.reduce_mean", "tf.math.reduce_mean"} or any(name.startswith(means) for name in names)
    return {} if is_mean else None


def _spec(
    train_op: cst.BaseExpression | None, optimizer: cst.BaseExpression | None, keywords: Mapping[str, str]
) -> Action:
    def action(writer: Writer, node: cst.CSTNode, updated: cst.CSTNode) -> Result:
        original, call = cst.ensure_type(node, cst.Call), cst.ensure_type(updated, cst.Call)
        args = []
        for before, arg in zip(original.args, call.args, strict=True):
            name = before.keyword.value if before.keyword is not None else ""
            if name == "train_op" and train_op is not None:
                writer.replaces(before.value)
                used = optimizer or cst.ensure_type(cst.ensure_type(arg.value, cst.Call).func, cst.Attribute).value
                args.append(arg.with_changes(keyword=cst.Name("optimizer"), value=used))
            elif name not in ("train_op", "scaffold"):
                args.append(arg)
        for name, value in keywords.items():
            args[-1] = args[-1].with_changes(comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))
            equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
            args.append(cst.Arg(cst.SimpleString(f'"{value}"'), cst.Name(name), equal))
        func = writer.renamed(original.func, "replicax.estimator.EstimatorSpec")
        return call.with_changes(func=func, args=args)

    return action


def _refused(reason: str) -> Action:
    def action(writer: Writer, node: cst.CSTNode, updated: cst.CSTNode) -> Result:
        writer.refuse(node, "tf.estimator.EstimatorSpec", reason)
        writer.leave(cst.ensure_type(node, cst.Call).func)
        return updated

    return action


def _of_hook(definition: cst.ClassDef) -> dict[cst.CSTNode, Action]:
    found: dict[cst.CSTNode, Action] = {}
    for each in definition.body.body:
        if isinstance(each, cst.FunctionDef) and each.name.value in METHODS:
            found[each] = _method
        elif isinstance(each, cst.FunctionDef) and each.name.value == "after_create_session":
            found[each] = _refused_method("There is no session: `begin` is called when the variables have values.")
    return found


def _method(writer: Writer, node: cst.CSTNode, updated: cst.CSTNode) -> Result:
    original, method = cst.ensure_type(node, cst.FunctionDef), cst.ensure_type(updated, cst.FunctionDef)
    dropped = {each.name.value for each in original.params.params[1:]}
    used = {name.value for name in m.findall(original.body, m.Name()) if isinstance(name, cst.Name)}
    returned = [each for each in m.findall(original.body, m.Return()) if cst.ensure_type(each, cst.Return).value]
    if dropped & used or returned:
        return _refused_method(
            "Its arguments are those of a session: a hook here gets a HookContext, with `step`, `loss` and `values()`."
        )(writer, node, updated)
    params = method.params
    first = params.params[0].with_changes(comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))
    context = cst.Param(cst.Name("context"))
    changed = params.with_changes(params=[first, context])
    return method.with_changes(name=cst.Name(METHODS[original.name.value]), params=changed)


def _refused_method(reason: str) -> Callable[[Writer, cst.CSTNode, cst.CSTNode], Result]:
    def action(writer: Writer, node: cst.CSTNode, updated: cst.CSTNode) -> Result:
        writer.refuse(node, f"SessionRunHook.{cst.ensure_type(node, cst.FunctionDef).name.value}", reason)
        return updated

    return action
