"""Notes on numbers of 64 bits: TensorFlow has them where a script asks, and divides integers into them."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst
from libcst import matchers as m

from replicax.tensorflow.codemod.findings import Finding
from replicax.tensorflow.codemod.script import Script

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


def notes(script: Script) -> Iterator[Finding]:
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
