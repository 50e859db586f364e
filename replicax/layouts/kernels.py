"""Which dimensions of a layer's kernel take its input, and which make its output."""

from __future__ import annotations

from typing import NamedTuple


class KernelDims(NamedTuple):
    """The dimensions of a kernel."""

    taken: tuple[int, ...]  # summed over: they meet the input's features
    made: tuple[int, ...]  # the output's features


_TRANSPOSED = ("Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose")
_CONVOLUTIONS = ("BaseConv", "Conv1D", "Conv2D", "Conv3D")
_DEPTHWISE = ("BaseDepthwiseConv", "DepthwiseConv1D", "DepthwiseConv2D")
_CELLS = ("LSTMCell", "GRUCell", "SimpleRNNCell")


def class_names(layer: object) -> frozenset[str]:
    """Returns the names of a layer's class and of all classes that it inherits from."""
    return frozenset(each.__name__ for each in type(layer).__mro__)


def kernel_dims(layer: object, ndim: int) -> KernelDims | None:
    """Returns what the dimensions of the kernel of a layer mean, by the layer's type; None for types without one."""
    names = class_names(layer)
    if "EinsumDense" in names:
        return _of_equation(str(getattr(layer, "equation", "")), ndim)
    if "Dense" in names and ndim == 2:
        return KernelDims((0,), (1,))
    if not names.isdisjoint(_TRANSPOSED):
        return KernelDims((ndim - 1,), (ndim - 2,))
    if not names.isdisjoint(_DEPTHWISE):
        return KernelDims((), (ndim - 2, ndim - 1))
    if not names.isdisjoint(_CONVOLUTIONS):
        return KernelDims((ndim - 2,), (ndim - 1,))
    if not names.isdisjoint(_CELLS) and ndim == 2:
        return KernelDims((0,), (1,))
    return None


def _of_equation(equation: str, ndim: int) -> KernelDims | None:
    """Returns the dimensions of the second operand of an `einsum`, such as `"btd,ndh->btnh"`."""
    operands, _, output = equation.replace(" ", "").replace("...", "").partition("->")
    _, _, kernel = operands.partition(",")
    if len(kernel) != ndim:
        return None
    made = tuple(i for i, letter in enumerate(kernel) if letter in output)
    return KernelDims(tuple(i for i in range(ndim) if i not in made), made)


def is_convolution(layer: object) -> bool:
    """Returns whether a layer is a convolution of any kind."""
    return not class_names(layer).isdisjoint((*_TRANSPOSED, *_CONVOLUTIONS, *_DEPTHWISE))
