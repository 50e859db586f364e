"""The role of a variable in its layer, and which of its dimensions tensor parallelism would cut.

A role follows from the type of the layer that made the variable and of the layer that built that one: the kernel of an
`EinsumDense` in a layer of attention whose equation makes heads is a query, key or value. Names decide only between
layers that have the same type and shape. Megatron-LM's plan is behind it: a pair of matrix products is cut along the
dimension between them, so that one sum over the devices follows the second.

References:
    M. Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism", 2019
    (arXiv:1909.08053).
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from replicax.contracts.variable_access import VariableLike, shape_of
from replicax.layouts.kernels import KernelDims, class_names, is_convolution, kernel_dims
from replicax.program.keras.makers import makers_of


class Cut(NamedTuple):
    """A dimension that may be cut, and what its entries are."""

    dimension: int
    entries: str


class Role(NamedTuple):
    """The role of a variable in its layer."""

    name: str  # in words, such as `"query kernel of MultiHeadAttention"`
    cuts: tuple[Cut, ...] = ()  # the dimensions that tensor parallelism may cut, the best first
    why_whole: str = ""  # why there are none
    kernel: VariableLike | None = None  # for a bias, or a factor of LoRA: the kernel whose layout it follows
    kernel_dimensions: tuple[int | None, ...] = ()  # for each dimension that of the kernel with the same entries


_COLUMN, _ROW = "output features", "input features"
_OUTPUT_NAMES = re.compile(r"out|down|ffw_linear|(?:^|_)(?:proj|fc2|wo|w2)|second")
_PARTS_OF_ATTENTION = ("query", "key", "value", "qkv", "output", "out")
_KERNELS = ("kernel", "depthwise_kernel", "pointwise_kernel", "recurrent_kernel")


def role_of(variable: VariableLike) -> Role:
    """Returns the role of a variable in the layer that made it."""
    shape, makers = shape_of(variable), makers_of(variable)
    if not shape:
        return Role("one number", why_whole="one number")
    if not makers:
        return _by_shape("no layer made it", shape)
    layer, name = makers[0], variable.name
    kind = type(layer).__name__
    for word in ("Metric", "SeedGenerator"):
        if word in class_names(layer):
            return Role(f"state of {kind}", why_whole=f"state of a {word}")
    if "norm" in kind.lower():
        return Role(f"{name} of {kind}", why_whole="a normalization needs it whole")
    if class_names(layer) & {"Embedding", "ReversibleEmbedding", "PositionEmbedding"}:
        return _of_embedding(layer, name, shape)
    return _of_kernel(variable, makers) or _beside_kernel(variable, makers) or _by_shape(f"{name} of {kind}", shape)


def _by_shape(name: str, shape: tuple[int, ...]) -> Role:
    order = sorted(range(len(shape)), key=lambda i: -shape[i])
    return Role(f"by shape ({name})", tuple(Cut(i, "entries") for i in order))


def _of_embedding(layer: object, name: str, shape: tuple[int, ...]) -> Role:
    kind = type(layer).__name__
    if len(shape) != 2:
        return _by_shape(f"{name} of {kind}", shape)
    table = _variable_of(layer, "embeddings")
    factor = {"lora_embeddings_a": (0, None), "lora_embeddings_b": (None, 1)}.get(name)
    if factor is not None and table is not None:
        return Role(f"factor of LoRA in {kind}", kernel=table, kernel_dimensions=factor)
    if "PositionEmbedding" in class_names(layer):
        return Role(f"positions of {kind}", (Cut(1, "features"), Cut(0, "positions")))
    rows, features = (1, 0) if name.startswith("reverse") else (0, 1)
    return Role(f"table of {kind}", (Cut(rows, "rows of the vocabulary"), Cut(features, "features")))


def _of_kernel(variable: VariableLike, makers: list[object]) -> Role | None:
    """Returns the role of a matrix that a layer multiplies its input with, or convolves it with."""
    layer, shape, name = makers[0], shape_of(variable), variable.name
    kind = type(layer).__name__
    if "expert" in kind.lower() and len(shape) == 3:
        cuts = (Cut(0, "experts"), *_by_shape(kind, shape).cuts)
        return Role(f"{name} of {kind}", cuts)
    if name not in _KERNELS:
        return None
    dims = kernel_dims(layer, len(shape))
    if dims is None:
        return None
    if is_convolution(layer):
        cuts = (*(Cut(i, "output channels") for i in dims.made), *(Cut(i, "input channels") for i in dims.taken))
        return Role(f"{name} of {kind}", cuts)
    parent = makers[1] if len(makers) > 1 else None
    if parent is not None and _is_attention(parent):
        return _in_attention(layer, parent, dims, shape)
    if parent is not None and class_names(layer) & {"Dense", "EinsumDense"}:
        kind = f"{kind} in {type(parent).__name__}"
    if _makes_more(layer, parent, dims, shape):
        return Role(f"up kernel of {kind}", (*_cuts(dims.made, _COLUMN), *_cuts(dims.taken, _ROW)))
    return Role(f"down kernel of {kind}", (*_cuts(dims.taken, _ROW), *_cuts(dims.made, _COLUMN)))


def _cuts(dimensions: tuple[int, ...], entries: str) -> list[Cut]:
    return [Cut(i, entries) for i in dimensions]


def _is_attention(layer: object) -> bool:
    return any("attention" in name.lower() for name in class_names(layer))


def _in_attention(layer: object, parent: object, dims: KernelDims, shape: tuple[int, ...]) -> Role:
    attribute = _attribute(parent, layer)
    part = next((word for word in _PARTS_OF_ATTENTION if word in attribute.lower()), "projection")
    makes_heads = len(dims.made) > 1 or (len(dims.taken) == 1 and part not in ("output", "out"))
    name = f"{'output' if part == 'out' else part} kernel of {type(parent).__name__}"
    own, other = (dims.made, dims.taken) if makes_heads else (dims.taken, dims.made)
    entries, others = (_COLUMN, _ROW) if makes_heads else (_ROW, _COLUMN)
    if len(own) > 1:  # Of each head a part would have to be summed in the midst of attention: that comes last.
        return Role(name, (Cut(own[0], "heads"), *_cuts(other, others), *_cuts(own[1:], "features of a head")))
    return Role(name, (*_cuts(own, entries), *_cuts(other, others)))


def _makes_more(layer: object, parent: object, dims: KernelDims, shape: tuple[int, ...]) -> bool:
    """Returns whether a layer widens its input, as the first of two layers does; the name of one as wide decides."""
    taken, made = (math.prod(shape[i] for i in each) for each in dims)
    if taken != made:
        return made > taken
    names = f"{getattr(layer, 'name', '')} {_attribute(parent, layer)}"
    return _OUTPUT_NAMES.search(names.lower()) is None


def _attribute(parent: object, layer: object) -> str:
    """Returns the name of the attribute by which a layer holds another; the other's own name where there is none."""
    held = (name for name, value in getattr(parent, "__dict__", {}).items() if value is layer)
    return str(next(held, getattr(layer, "name", "")))


def _variable_of(layer: object, *names: str) -> VariableLike | None:
    """Returns the variable of one of these names that a layer has made, if it has."""
    made: list[VariableLike] = getattr(layer, "variables", [])
    return next((variable for variable in made if variable.name in names), None)


def _beside_kernel(variable: VariableLike, makers: list[object]) -> Role | None:
    """Returns the role of a variable that belongs to the kernel of its layer: a bias, a factor of LoRA, a scale."""
    layer, name, shape = makers[0], variable.name, shape_of(variable)
    kind = type(layer).__name__
    kernel = _variable_of(layer, *_KERNELS)
    dims = None if kernel is None or kernel is variable else kernel_dims(layer, len(shape_of(kernel)))
    if kernel is None or dims is None:
        return None
    last = len(shape_of(kernel)) - 1
    if name == "lora_kernel_a":
        return Role(f"factor of LoRA in {kind}", kernel=kernel, kernel_dimensions=(*range(last), None))
    if name == "lora_kernel_b":
        return Role(f"factor of LoRA in {kind}", kernel=kernel, kernel_dimensions=(None, last))
    for first in reversed(range(len(dims.made) - len(shape) + 1)):
        made = dims.made[first : first + len(shape)]
        if tuple(shape_of(kernel)[i] for i in made) == shape:
            return Role(f"{name} of {kind}", kernel=kernel, kernel_dimensions=made)
    return None
