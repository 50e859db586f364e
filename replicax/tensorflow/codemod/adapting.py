"""Arguments that Keras wants in another form: literals are rewritten, and whatever is not a literal is refused."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping

import libcst as cst

Arguments = Mapping[str, cst.BaseExpression]


class Unconvertible(Exception):
    """A call cannot be converted; the message is the reason, a sentence."""


def literal(node: cst.BaseExpression | None) -> object:
    """Returns the value of a literal (a number, a string, None, a list or tuple of those)."""
    code = "" if node is None else cst.Module([]).code_for_node(node)
    try:
        return ast.literal_eval(code)
    except (ValueError, SyntaxError):
        raise Unconvertible(f"`{code}` is no literal, so that its form is not known") from None


def is_literal(node: cst.BaseExpression | None) -> bool:
    """Returns whether `literal` has a value for an expression."""
    try:
        literal(node)
    except Unconvertible:
        return False
    return True


def is_none(node: cst.BaseExpression | None) -> bool:
    """Returns whether an argument is None, or was not given."""
    return node is None or (isinstance(node, cst.Name) and node.value == "None")


def expression(value: object) -> cst.BaseExpression:
    """Returns the literal of a value."""
    return cst.parse_expression(repr(value))


def as_tuple(node: cst.BaseExpression, arguments: Arguments) -> cst.BaseExpression:
    """Returns a list as a tuple, as reductions of Keras want their axes; anything else as it is."""
    if not isinstance(node, cst.List) or not node.elements:
        return node
    if len(node.elements) == 1:
        return node.elements[0].value
    return cst.Tuple(node.elements)


def _for_none(axis: int) -> Callable[[cst.BaseExpression, Arguments], cst.BaseExpression]:
    def adapt(node: cst.BaseExpression, arguments: Arguments) -> cst.BaseExpression:
        return expression(axis) if is_none(node) else node

    return adapt


def as_array(node: cst.BaseExpression, arguments: Arguments) -> cst.BaseExpression:
    """Returns a list as an array of NumPy, whose numbers are known where a program is traced."""
    if not isinstance(node, (cst.List, cst.Tuple)):
        return node
    return cst.parse_expression(f"np.array({cst.Module([]).code_for_node(node)})")


def given(node: cst.BaseExpression, arguments: Arguments) -> cst.BaseExpression:
    """Returns an argument that is not None."""
    if isinstance(node, cst.Name) and node.value == "None":
        raise Unconvertible("it is converted with all arguments only, and one is None")
    return node


def one_axis(node: cst.BaseExpression, arguments: Arguments) -> cst.BaseExpression:
    """Returns an axis that is one number."""
    node = as_tuple(node, arguments)
    if not isinstance(literal(node), int):
        raise Unconvertible("Keras normalizes along one axis, TensorFlow along several together")
    return node


def axis_or_all(node: cst.BaseExpression, arguments: Arguments) -> cst.BaseExpression:
    """Returns the axes to squeeze; an empty list means all of them."""
    return expression(None) if isinstance(node, cst.List) and not node.elements else as_tuple(node, arguments)


def square_root(node: cst.BaseExpression, arguments: Arguments) -> cst.BaseExpression:
    """Returns the root of a number: TensorFlow compares the squared norm with epsilon, Keras the norm."""
    value = literal(node)
    if not isinstance(value, (int, float)):
        raise Unconvertible(f"epsilon is {value!r}, and no number")
    return expression(math.sqrt(value))


def lower_word(node: cst.BaseExpression, arguments: Arguments) -> cst.BaseExpression:
    """Returns a word in small letters, as Keras writes "same" and "constant"."""
    value = literal(node)
    if not isinstance(value, str):
        raise Unconvertible(f"Keras takes one word here, and this is {value!r}")
    return expression(value.lower())


def split_sizes(node: cst.BaseExpression, arguments: Arguments) -> cst.BaseExpression:
    """Returns the places to cut at, for the sizes of the parts; a number of parts stays."""
    value = literal(node)
    if isinstance(value, int):
        return node
    sizes = list(value) if isinstance(value, (list, tuple)) else []
    if not all(isinstance(size, int) and size >= 0 for size in sizes):
        raise Unconvertible(
            "TensorFlow takes the sizes of the parts and Keras the places to cut at: -1 is not known here"
        )
    return expression([sum(sizes[:end]) for end in range(1, len(sizes))])


def window(node: cst.BaseExpression, arguments: Arguments) -> cst.BaseExpression:
    """Returns sizes or strides of a window, without those of the batch and the channels."""
    value = literal(node)
    if value is None or isinstance(value, int):
        return node
    sizes = list(value) if isinstance(value, (list, tuple)) else []
    if len(sizes) == 1:
        return expression(sizes[0])
    if len(sizes) in (3, 4) and sizes[0] == sizes[-1] == 1:
        sizes = sizes[1:-1]
        return expression(tuple(sizes) if len(sizes) > 1 else sizes[0])
    if len(sizes) == 2:
        return expression(tuple(sizes))
    raise Unconvertible(f"Keras has no window of {value!r}: batch and channels have the step 1 there")


def resize_method(node: cst.BaseExpression, arguments: Arguments) -> cst.BaseExpression:
    """Returns the name of an interpolation that Keras computes as TensorFlow does."""
    word = literal(node)
    known = {"bilinear": "bilinear", "nearest": "nearest"}
    if word not in known:
        raise Unconvertible(f"Keras does not interpolate as TensorFlow's {word!r} does")
    return expression(known[str(word)])


def transposed(flag: str) -> Callable[[cst.BaseExpression, Arguments], cst.BaseExpression]:
    """Returns the function that swaps the last two axes of an argument if the argument `flag` says so."""

    def adapt(node: cst.BaseExpression, arguments: Arguments) -> cst.BaseExpression:
        value = literal(arguments[flag]) if flag in arguments else False
        if value is False:
            return node
        code = cst.Module([]).code_for_node(node)
        return cst.parse_expression(f"keras.ops.swapaxes({code}, -2, -1)")

    return adapt


ADAPTERS: Mapping[str, Callable[[cst.BaseExpression, Arguments], cst.BaseExpression]] = {
    "as_tuple": as_tuple,
    "given": given,
    "as_array": as_array,
    "zero_for_none": _for_none(0),
    "last_for_none": _for_none(-1),
    "one_axis": one_axis,
    "axis_or_all": axis_or_all,
    "square_root": square_root,
    "lower_word": lower_word,
    "split_sizes": split_sizes,
    "window": window,
    "resize_method": resize_method,
    "transposed_by:transpose_a": transposed("transpose_a"),
    "transposed_by:transpose_b": transposed("transpose_b"),
}
