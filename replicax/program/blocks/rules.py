"""For each operation: whether it can be worked off block by block, and what its blocks then are.

A value is whole, or it is cut: one dimension, often that of a batch's rows, is divided into as many equal parts as
there are blocks. An operation on cut values makes blocks again, or of each block a part of a sum over all rows. Of one
without a rule here the operands are put together first: slower, with the same result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.extend import core as jex_core

from replicax.compat.jax_names import BITS_BY_ELEMENT, BY_ELEMENT, COMBINING, CUMULATIVE, SCATTERS
from replicax.program.ir.jaxprs import aval_of
from replicax.runtime.precision import adding_dtype

#: A dimension that is cut; None: whole.
Dimension: TypeAlias = int | None
FIRST = -1  # in place of a dimension: the first block gets the operand whole, and the others zeros


class Cut(NamedTuple):
    """How an equation is worked off in blocks."""

    operands: Sequence[Dimension]  # how each operand is wanted
    results: Sequence[int | str]  # for each result its cut dimension, or what combines the blocks' parts of it
    params: Mapping[str, Any] = {}  # those that are others in a block
    evaluate: Callable[..., Sequence[jax.Array]] | None = None  # what makes the results; None: the operation itself


SAME = "same"  # in place of a combiner: all blocks have computed the same value
#: The functions that combine two parts.
COMBINERS: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    **dict(
        zip(COMBINING, (jnp.add, jnp.maximum, jnp.minimum, jnp.multiply, jnp.bitwise_and, jnp.bitwise_or), strict=True)
    ),
    SAME: lambda first, second: first,
}
#: `(equation, dimensions of its operands, number of blocks) -> Cut`, None where its operands have to be whole.
Rule: TypeAlias = Callable[[jex_core.JaxprEqn, Sequence[Dimension], int], Cut | None]


def cut_of(equation: jex_core.JaxprEqn, dimensions: Sequence[Dimension], blocks: int) -> Cut | None:
    """Returns how an equation is worked off in blocks; None where it cannot be. At least one operand is cut."""
    rule = RULES.get(equation.primitive.name)
    return None if rule is None else rule(equation, dimensions, blocks)


def shape_of_block(shape: Sequence[int], dimension: int, blocks: int) -> tuple[int, ...]:
    """Returns the shape of one block."""
    return tuple(size // blocks if i == dimension else size for i, size in enumerate(shape))


def _shape(atom: jex_core.Var | jex_core.Literal) -> tuple[int, ...]:
    return tuple(aval_of(atom).shape)


def _only(dimensions: Sequence[Dimension]) -> int | None:
    """Returns the dimension along which all cut operands are cut; None if they differ."""
    found = {each for each in dimensions if each is not None}
    return found.pop() if len(found) == 1 else None


# Numbers that stay where they are.


def _by_element(equation: jex_core.JaxprEqn, dimensions: Sequence[Dimension], blocks: int) -> Cut | None:
    cut, shape = _only(dimensions), _shape(equation.outvars[0])
    if cut is None:
        return None
    # An operand whose dimension has one number, or which is a number, goes with all rows.
    operands = [cut if _shape(atom) and _shape(atom)[cut] == shape[cut] else None for atom in equation.invars]
    if any(own is not None and wanted is None for own, wanted in zip(dimensions, operands, strict=True)):
        return None
    return Cut(operands, [cut] * len(equation.outvars))


def _each_for_itself(equation: jex_core.JaxprEqn, dimensions: Sequence[Dimension], blocks: int) -> Cut | None:
    """The rule of identities with several operands."""
    if any(each is None for each in dimensions):
        return None
    return Cut(dimensions, [each for each in dimensions if each is not None])


# Numbers that get another place.


def _broadcast(equation: jex_core.JaxprEqn, dimensions: Sequence[Dimension], blocks: int) -> Cut | None:
    shape, places = equation.params["shape"], equation.params["broadcast_dimensions"]
    cut = dimensions[0]
    if cut is None or len(equation.invars) > 1:
        return None
    place = places[cut]
    if shape[place] != _shape(equation.invars[0])[cut]:
        return None
    return Cut([cut], [place], {"shape": shape_of_block(shape, place, blocks)})


def broadcast_anew(equation: jex_core.JaxprEqn, wanted: int, blocks: int) -> Cut | None:
    """Returns how a block of what is broadcast from a whole value is made; None where it is a part of that value."""
    shape, places = equation.params["shape"], equation.params["broadcast_dimensions"]
    if len(equation.invars) > 1:
        return None
    if wanted in places:
        own = places.index(wanted)
        if _shape(equation.invars[0])[own] == shape[wanted]:
            return None
    return Cut([None], [wanted], {"shape": shape_of_block(shape, wanted, blocks)})


def _reshape(equation: jex_core.JaxprEqn, dimensions: Sequence[Dimension], blocks: int) -> Cut | None:
    cut = dimensions[0]
    if cut is None or equation.params["dimensions"] is not None or len(equation.invars) > 1:
        return None
    before, shape = math.prod(_shape(equation.invars[0])[:cut]), equation.params["new_sizes"]
    for place, size in enumerate(shape):
        # The parts are parts of the new dimension if as many numbers come before both.
        if math.prod(shape[:place]) == before and size and size % blocks == 0:
            return Cut([cut], [place], {"new_sizes": shape_of_block(shape, place, blocks)})
    return None


def _transpose(equation: jex_core.JaxprEqn, dimensions: Sequence[Dimension], blocks: int) -> Cut | None:
    return Cut(dimensions, [equation.params["permutation"].index(dimensions[0])])


def _squeeze(equation: jex_core.JaxprEqn, dimensions: Sequence[Dimension], blocks: int) -> Cut | None:
    cut, gone = dimensions[0], equation.params["dimensions"]
    if cut is None or cut in gone:
        return None
    return Cut([cut], [cut - sum(each < cut for each in gone)])


def _along_others(parameter: str) -> Rule:
    """Returns the rule of operations along one dimension, or several, which must not be the cut one."""

    def rule(equation: jex_core.JaxprEqn, dimensions: Sequence[Dimension], blocks: int) -> Cut | None:
        cut, along = _only(dimensions), equation.params[parameter]
        if cut is None or cut in (along if isinstance(along, tuple) else (along,)):
            return None
        ranks = {len(_shape(atom)) for atom in equation.invars}
        return Cut([cut] * len(equation.invars), [cut] * len(equation.outvars)) if len(ranks) == 1 else None

    return rule


def _along_last(equation: jex_core.JaxprEqn, dimensions: Sequence[Dimension], blocks: int) -> Cut | None:
    cut = dimensions[0]
    if cut is None or cut == len(_shape(equation.invars[0])) - 1 or equation.params.get("axis", -1) == cut:
        return None
    return Cut([cut], [cut] * len(equation.outvars))


def _pad(equation: jex_core.JaxprEqn, dimensions: Sequence[Dimension], blocks: int) -> Cut | None:
    cut = dimensions[0]
    if cut is None or dimensions[1] is not None or tuple(equation.params["padding_config"][cut]) != (0, 0, 0):
        return None
    return Cut([cut, None], [cut])


def _slice(equation: jex_core.JaxprEqn, dimensions: Sequence[Dimension], blocks: int) -> Cut | None:
    cut, params = dimensions[0], equation.params
    if cut is None:
        return None
    size, strides = _shape(equation.invars[0])[cut], params["strides"]
    if params["start_indices"][cut] or params["limit_indices"][cut] != size or (strides and strides[cut] != 1):
        return None
    limits = shape_of_block(params["limit_indices"], cut, blocks)
    return Cut([cut], [cut], {"limit_indices": limits})


def _dynamic_slice(equation: jex_core.JaxprEqn, dimensions: Sequence[Dimension], blocks: int) -> Cut | None:
    cut, sizes = dimensions[0], equation.params["slice_sizes"]
    if cut is None or any(each is not None for each in dimensions[1:]):
        return None
    if sizes[cut] != _shape(equation.invars[0])[cut]:
        return None
    return Cut(dimensions, [cut], {"slice_sizes": shape_of_block(sizes, cut, blocks)})


def _dynamic_update_slice(equation: jex_core.JaxprEqn, dimensions: Sequence[Dimension], blocks: int) -> Cut | None:
    cut = _only(dimensions[:2])
    if cut is None or any(each is not None for each in dimensions[2:]):
        return None
    if _shape(equation.invars[0])[cut] != _shape(equation.invars[1])[cut]:
        return None
    return Cut([cut, cut, *dimensions[2:]], [cut])


# Sums and products.


def _reduce(combiner: str) -> Rule:
    def rule(equation: jex_core.JaxprEqn, dimensions: Sequence[Dimension], blocks: int) -> Cut | None:
        cut, axes = dimensions[0], equation.params["axes"]
        assert cut is not None
        if cut in axes:
            return Cut([cut], [combiner]) if combiner else None
        return Cut([cut], [cut - sum(each < cut for each in axes)])

    return rule


def _dot(equation: jex_core.JaxprEqn, dimensions: Sequence[Dimension], blocks: int) -> Cut | None:
    (contracting, batch) = equation.params["dimension_numbers"]
    side = 0 if dimensions[0] is not None else 1
    cut, other = dimensions[side], dimensions[1 - side]
    assert cut is not None
    rank = len(_shape(equation.invars[side]))

    def both(wanted: int) -> list[Dimension]:
        return [cut, wanted] if side == 0 else [wanted, cut]

    if cut in contracting[side]:
        wanted = contracting[1 - side][contracting[side].index(cut)]
        return Cut(both(wanted), ["add"], _in_float32(equation)) if other in (None, wanted) else None
    if cut in batch[side]:
        place = batch[side].index(cut)
        wanted = batch[1 - side][place]
        return Cut(both(wanted), [place]) if other in (None, wanted) else None
    if other is not None:
        return None
    own = [i for i in range(rank) if i not in contracting[side] and i not in batch[side]]
    place = len(batch[0]) + own.index(cut)
    if side == 1:
        place += len(_shape(equation.invars[0])) - len(contracting[0]) - len(batch[0])
    return Cut(dimensions, [place])


def _in_float32(equation: jex_core.JaxprEqn) -> dict[str, Any]:
    """Returns the parameter with which a part of a sum keeps its bits until all parts are added."""
    dtype = aval_of(equation.outvars[0]).dtype
    return {} if adding_dtype(dtype) == dtype else {"preferred_element_type": adding_dtype(dtype)}


def _convolution(equation: jex_core.JaxprEqn, dimensions: Sequence[Dimension], blocks: int) -> Cut | None:
    params = equation.params
    left, right, out = (getattr(params["dimension_numbers"], name) for name in ("lhs_spec", "rhs_spec", "out_spec"))
    if dimensions[1] is None:
        is_plain = dimensions[0] == left[0] and params["batch_group_count"] == 1
        return Cut(dimensions, [out[0]]) if is_plain else None
    # The gradient of a kernel: rows are features there, and are summed.
    if params["feature_group_count"] != 1 or dimensions[1] != right[1] or dimensions[0] not in (None, left[1]):
        return None
    return Cut([left[1], right[1]], ["add"], _in_float32(equation))


def _windows(equation: jex_core.JaxprEqn, dimensions: Sequence[Dimension], blocks: int) -> Cut | None:
    cut, params = _only(dimensions), equation.params
    if cut is None or len({len(_shape(atom)) for atom in equation.invars}) > 1:
        return None
    plain = {"window_dimensions": 1, "window_strides": 1, "base_dilation": 1, "window_dilation": 1}
    if any(params[name][cut] != value for name, value in plain.items() if params.get(name) is not None):
        return None
    if tuple(params["padding"][cut]) != (0, 0):
        return None
    return Cut([cut] * len(equation.invars), [cut] * len(equation.outvars))


# Looking up and adding up by number.


def _gather(equation: jex_core.JaxprEqn, dimensions: Sequence[Dimension], blocks: int) -> Cut | None:
    numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    table, index = dimensions
    rank = len(_shape(equation.outvars[0]))
    of_index = [i for i in range(rank) if i not in numbers.offset_dims]  # results' dimensions, for those of the indices
    if index is not None:
        if index == len(_shape(equation.invars[1])) - 1:
            return None
        if index in numbers.start_indices_batching_dims:
            wanted = numbers.operand_batching_dims[numbers.start_indices_batching_dims.index(index)]
            return Cut([wanted, index], [of_index[index]]) if table in (None, wanted) else None
        return Cut(dimensions, [of_index[index]]) if table is None else None
    assert table is not None
    if table in numbers.operand_batching_dims:
        wanted = numbers.start_indices_batching_dims[numbers.operand_batching_dims.index(table)]
        return Cut([table, wanted], [of_index[wanted]])
    if sizes[table] != _shape(equation.invars[0])[table] or table in numbers.collapsed_slice_dims:
        return None
    gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    offsets = [i for i in range(len(sizes)) if i not in gone]
    place = numbers.offset_dims[offsets.index(table)]
    return Cut(dimensions, [place], {"slice_sizes": shape_of_block(sizes, table, blocks)})


def _scatter(equation: jex_core.JaxprEqn, dimensions: Sequence[Dimension], blocks: int) -> Cut | None:
    numbers = equation.params["dimension_numbers"]
    table, index, update = dimensions
    of_index = [i for i in range(len(_shape(equation.invars[2]))) if i not in numbers.update_window_dims]
    if table is None and index is None:
        # Such as the first dimension of updates at indices that count the rows.
        if update is None or update not in of_index:
            return None
        index = of_index.index(update)
    if index is not None:
        if index == len(_shape(equation.invars[1])) - 1 or update not in (None, of_index[index]):
            return None
        wanted = of_index[index]
        if index in numbers.scatter_indices_batching_dims:
            own = numbers.operand_batching_dims[numbers.scatter_indices_batching_dims.index(index)]
            return Cut([own, index, wanted], [own]) if table in (None, own) else None
        if table is None and equation.primitive.name == "scatter-add":
            return Cut([FIRST, index, wanted], ["add"])
        return None
    if table is not None and table in numbers.operand_batching_dims:
        index = numbers.scatter_indices_batching_dims[numbers.operand_batching_dims.index(table)]
        return Cut([table, index, of_index[index]], [table]) if update in (None, of_index[index]) else None
    if table is None or table in numbers.inserted_window_dims:
        return None
    gone = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    windows = [i for i in range(len(_shape(equation.invars[0]))) if i not in gone]
    wanted = numbers.update_window_dims[windows.index(table)]
    is_full = _shape(equation.invars[2])[wanted] == _shape(equation.invars[0])[table]
    return Cut([table, None, wanted], [table]) if is_full and update in (None, wanted) else None


RULES: dict[str, Rule] = {
    **dict.fromkeys([*BY_ELEMENT, *BITS_BY_ELEMENT], _by_element),
    **dict.fromkeys(CUMULATIVE, _along_others("axis")),
    **dict.fromkeys(["argmax", "argmin"], _reduce("")),
    **dict.fromkeys(["gather"], _gather),
    **dict.fromkeys(SCATTERS - {"scatter-sub"}, _scatter),
    **dict.fromkeys(
        ["reduce_window", "reduce_window_sum", "reduce_window_max", "reduce_window_min", "select_and_scatter_add",
         "select_and_gather_add"], _windows
    ),
    "broadcast_in_dim": _broadcast,
    "concatenate": _along_others("dimension"),
    "conv_general_dilated": _convolution,
    "dot_general": _dot,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "optimization_barrier": _each_for_itself,
    "pad": _pad,
    "reduce_and": _reduce("and"),
    "reduce_max": _reduce("max"),
    "reduce_min": _reduce("min"),
    "reduce_or": _reduce("or"),
    "reduce_prod": _reduce("mul"),
    "reduce_sum": _reduce("add"),
    "reshape": _reshape,
    "rev": _along_others("dimensions"),
    "slice": _slice,
    "sort": _along_others("dimension"),
    "split": _along_others("axis"),
    "squeeze": _squeeze,
    "top_k": _along_last,
    "transpose": _transpose,
}  # fmt: skip
