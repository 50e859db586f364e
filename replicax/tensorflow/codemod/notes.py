"""Notes on what is converted and may come out otherwise than in TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst
from libcst import matchers as m

from replicax.tensorflow.codemod.findings import Finding
from replicax.tensorflow.codemod.script import Script


def notes(script: Script) -> Iterator[Finding]:
    """Yields all notes on a script."""
    for each in (_cross_entropies, _reduced_batches, _wide_numbers):
        yield from each(script)


# Cross-entropies of probabilities: TensorFlow took the logits behind them, Keras 3 on JAX takes what it is given.


_LOSS_CLASSES = ("BinaryCrossentropy", "CategoricalCrossentropy", "SparseCategoricalCrossentropy")
_LOSS_FUNCTIONS = ("binary_crossentropy", "categorical_crossentropy", "sparse_categorical_crossentropy")
_LOSSES = {
    f"{module}.{name}" for module in ("tf.keras.losses", "tf.losses") for name in (*_LOSS_CLASSES, *_LOSS_FUNCTIONS)
}
_PROBABILITIES = (
    "It is given probabilities. Behind a softmax or sigmoid TensorFlow computes from the logits; here probabilities "
    "are clipped to [1e-7, 1 - 1e-7], and there is no gradient beyond. If they come so near to 0 or 1, let the model "
    "return logits, and give `from_logits=True`."
)


def _cross_entropies(script: Script) -> Iterator[Finding]:
    """Yields a note for each cross-entropy that is not said to take logits."""
    for node in m.findall(script.module, m.Call()):
        call = cst.ensure_type(node, cst.Call)
        name = script.names.of(call.func)
        if name is not None and name in _LOSSES and not _takes_logits(call):
            yield Finding(script.line(call), name, _PROBABILITIES, "note")
        elif m.matches(call.func, m.Attribute(attr=m.Name("compile"))):
            yield from _compiled(script, call)


def _compiled(script: Script, call: cst.Call) -> Iterator[Finding]:
    """Yields notes on what `Model.compile` gets as `loss`: names, in quotes or not, alone or in a list or dict."""
    for arg in call.args:
        if arg.keyword is not None and arg.keyword.value == "loss" and not isinstance(arg.value, cst.Call):
            for node in m.findall(arg.value, m.SimpleString() | m.Attribute() | m.Name()):
                if isinstance(node, cst.SimpleString):
                    name: str | None = f"tf.keras.losses.{node.raw_value}"
                else:
                    name = script.names.of(node)
                if name is not None and name in _LOSSES:
                    yield Finding(script.line(node), name, _PROBABILITIES, "note")


def _takes_logits(call: cst.Call) -> bool:
    given = {arg.keyword.value: arg.value for arg in call.args if arg.keyword is not None}
    return "from_logits" in given and not m.matches(given["from_logits"], m.Name("False"))


# Sums and means over the replicas: a batch that does not divide is cut otherwise than in TensorFlow.


_REDUCED = (
    "A batch that does not divide by the number of replicas is cut otherwise than in TensorFlow, and a last batch may "
    "run on fewer replicas. Sums of losses that are divided by the global batch size are the same; means, and sums of "
    "means or constants, of such a batch can differ. `drop_remainder=True` avoids it."
)


def _reduced_batches(script: Script) -> Iterator[Finding]:
    """Yields one note for a script, at the first `strategy.reduce` of the results of a batch."""
    if not m.findall(script.module, m.Attribute(attr=m.Name("experimental_distribute_dataset"))):
        return
    for node in m.findall(script.module, m.Call(func=m.Attribute(attr=m.Name("reduce")))):
        func = cst.ensure_type(cst.ensure_type(node, cst.Call).func, cst.Attribute)
        if script.kinds.is_a(func.value, "tf.distribute.Strategy"):
            yield Finding(script.line(node), "tf.distribute.Strategy.reduce", _REDUCED, "note")
            return


# Numbers of 64 bits: TensorFlow has them where a script asks, and divides integers into them.


WIDE = "JAX computes with 32 bits, unless `jax_enable_x64` is set: where it counts, set it."
WIDE_DTYPES = ("int64", "uint64", "float64", "complex128")
QUOTIENT = "of integers TensorFlow's quotient is float64, that of Keras on JAX float32"
_DTYPES = ("dtype", "out_type", "output_type")
_INTEGERS = frozenset({"tf.argmax", "tf.argmin", "tf.math.argmax", "tf.math.argmin", "tf.math.count_nonzero"})
#: Functions whose result has the dtype of their arguments.
_KEEP = "abs add constant convert_to_tensor expand_dims gather identity maximum minimum multiply range reduce_max"
_KEEP += " reduce_min reduce_prod reduce_sum reshape square squeeze stack subtract transpose"
_SAME = frozenset(f"{module}.{name}" for module in ("tf", "tf.math") for name in _KEEP.split())
_OTHER = m.Float() | m.Name() | m.Call() | m.SimpleString()
_KEEPING = (cst.Add, cst.Subtract, cst.Multiply, cst.FloorDivide, cst.Modulo, cst.Power)


def _wide_numbers(script: Script) -> Iterator[Finding]:
    """Yields a note for each call that is given a dtype of 64 bits as a text, and for each quotient of integers."""
    for node in m.findall(script.module, m.Call()):
        call = cst.ensure_type(node, cst.Call)
        name = script.names.of(call.func)
        if name is not None and name.startswith("tf.") and any(_is_wide(script, arg.value) for arg in call.args):
            yield Finding(script.line(call), name, WIDE, "note")
    for node in m.findall(script.module, m.BinaryOperation(operator=m.Divide())):
        quotient = cst.ensure_type(node, cst.BinaryOperation)
        yield from _quotient(script, node, quotient.left, quotient.right)
    for node in m.findall(script.module, m.AugAssign(operator=m.DivideAssign())):
        divided = cst.ensure_type(node, cst.AugAssign)
        yield from _quotient(script, node, divided.target, divided.value)


def _quotient(script: Script, node: cst.CSTNode, *sides: cst.BaseExpression) -> Iterator[Finding]:
    if any(_is_integer(script, side, set()) for side in sides):
        yield Finding(script.line(node), "/", f"{QUOTIENT[0].upper()}{QUOTIENT[1:]}.", "note")


def _is_wide(script: Script, node: cst.BaseExpression) -> bool:
    if isinstance(node, cst.SimpleString):
        return node.evaluated_value in WIDE_DTYPES
    module, _, name = (script.names.of(node) or "").rpartition(".")
    return module == "numpy" and name in WIDE_DTYPES


def _is_integer(script: Script, node: cst.CSTNode, seen: set[cst.CSTNode]) -> bool:
    """Returns whether an expression is known to be a tensor of integers."""
    if node in seen:
        return False
    seen.add(node)
    if isinstance(node, cst.Name):
        values = [script.names.assigned_value(each) for each in script.names.assignments(node)]
        return len(values) == 1 and values[0] is not None and _is_integer(script, values[0], seen)
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, _KEEPING):
        return _is_integer(script, node.left, seen) or _is_integer(script, node.right, seen)
    if isinstance(node, (cst.Subscript, cst.UnaryOperation)):
        return _is_integer(script, node.value if isinstance(node, cst.Subscript) else node.expression, seen)
    name = script.names.of(node.func) if isinstance(node, cst.Call) else None
    if name is None or not isinstance(node, cst.Call):
        return False
    dtypes = [arg.value for arg in node.args if arg.keyword is not None and arg.keyword.value in _DTYPES]
    given = [arg.value for arg in node.args if arg.keyword is None and not arg.star]
    if name in ("tf.cast", "tf.saturate_cast", "tf.dtypes.cast"):
        dtypes += given[1:2]
    if dtypes:
        return "int" in cst.Module([]).code_for_node(dtypes[0])
    if name in _INTEGERS:
        return True
    if name not in _SAME or not given:
        return False
    numbers = m.findall(given[0], m.Integer()) and not m.findall(given[0], _OTHER)
    return bool(numbers) or _is_integer(script, given[0], seen)
