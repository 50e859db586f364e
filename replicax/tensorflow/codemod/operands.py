"""Arguments that TensorFlow takes as tensors and Keras does not: lists, and variables for some functions."""

from __future__ import annotations

import libcst as cst

from replicax.tensorflow.codemod.op_calls import parameters
from replicax.tensorflow.codemod.op_row import OpRow
from replicax.tensorflow.codemod.rules import Rewriting

#: Parameters that are tensors, wherever they stand.
_TENSORS = frozenset(
    [
        *("x", "y", "a", "b", "t", "input", "inputs", "tensor", "value", "input_tensor", "data", "segment_ids", "args"),
        *("targets", "predictions", "indices", "updates", "condition", "logits", "labels", "features", "image"),
        *("images", "filters"),
    ]
)
#: Functions of Keras that do not take a variable.
_NO_VARIABLES = (
    *("where", "moments", "top_k", "in_top_k", "unstack", "max_pool", "average_pool", "image.resize", "all", "any"),
    *("count_nonzero", "map", "vectorized_map", "stop_gradient"),
)
_LIKE = ("zeros_like", "ones_like")


def as_tensors(rewriting: Rewriting, row: OpRow, node: cst.Call, updated: cst.Call) -> cst.Call:
    """Returns a call of a row's function whose operands are tensors, where Keras takes nothing else."""
    known = parameters(row.signature)
    function = row.template.partition("(")[0].removeprefix("keras.ops.")
    args = []
    for place, (before, arg) in enumerate(zip(node.args, updated.args, strict=True)):
        positional = known.names[place] if place < len(known.names) else known.rest
        parameter = arg.keyword.value if arg.keyword is not None else positional
        if parameter in _TENSORS and not arg.star and _is_wrapped(rewriting, function, before.value):
            value = rewriting.code("keras.ops.convert_to_tensor({value})", value=arg.value)
            arg = arg.with_changes(value=value)
        args.append(arg)
    return updated.with_changes(args=args)


def _is_wrapped(rewriting: Rewriting, function: str, value: cst.BaseExpression) -> bool:
    kind = rewriting.script.kinds.of(value)
    if function in _LIKE:
        return kind != "tf.Tensor"
    if kind in ("list", "tuple") or isinstance(value, (cst.List, cst.Tuple, cst.ListComp)):
        return True
    return function in _NO_VARIABLES and rewriting.script.kinds.is_a(value, "tf.Variable")
