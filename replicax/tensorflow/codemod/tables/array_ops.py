"""Making, reshaping, joining, cutting and indexing tensors; control flow over tensors."""

from __future__ import annotations

from replicax.tensorflow.codemod.op_row import OpRow

MAKING = [
    OpRow("zeros(shape, dtype=tf.float32)", "keras.ops.zeros(shape, dtype=dtype)"),
    OpRow("ones(shape, dtype=tf.float32)", "keras.ops.ones(shape, dtype=dtype)"),
    OpRow("zeros_like(input, dtype=None)", "keras.ops.zeros_like(input, dtype=dtype)"),
    OpRow("ones_like(input, dtype=None)", "keras.ops.ones_like(input, dtype=dtype)"),
    OpRow("fill(dims, value)", "keras.ops.broadcast_to(value, dims)"),
    OpRow("linspace(start, stop, num, name=None, axis=0)", "keras.ops.linspace(start, stop, num, axis=axis)"),
    OpRow(
        "one_hot(indices, depth, on_value=None, off_value=None, axis=None, dtype=None)",
        "keras.ops.one_hot(indices, depth, axis=axis, dtype=dtype)",
    ),
    OpRow("meshgrid(*args, indexing='xy')", "keras.ops.meshgrid(*args, indexing=indexing)"),
    OpRow(
        "sequence_mask(lengths, maxlen)", "keras.ops.less(keras.ops.arange(maxlen), keras.ops.expand_dims(lengths, -1))"
    ),
]

SHAPING = [
    OpRow("reshape(tensor, shape)", "keras.ops.reshape(tensor, shape)"),
    OpRow("expand_dims(input, axis)", "keras.ops.expand_dims(input, axis)"),
    OpRow("squeeze(input, axis=None)", "keras.ops.squeeze(input, axis=axis)", adapt=(("axis", "axis_or_all"),)),
    OpRow("transpose(a, perm=None)", "keras.ops.transpose(a, axes=perm)"),
    OpRow("broadcast_to(input, shape)", "keras.ops.broadcast_to(input, shape)"),
    OpRow("rank(input)", "keras.ops.ndim(input)"),
    OpRow("size(input)", "keras.ops.size(input)"),
    OpRow("concat(values, axis)", "keras.ops.concatenate(values, axis=axis)"),
    OpRow("stack(values, axis=0)", "keras.ops.stack(values, axis=axis)"),
    OpRow("unstack(value, num=None, axis=0)", "keras.ops.unstack(value, num=num, axis=axis)"),
    OpRow(
        "split(value, num_or_size_splits, axis=0)",
        "keras.ops.split(value, num_or_size_splits, axis=axis)",
        adapt=(("num_or_size_splits", "split_sizes"),),
    ),
    OpRow("tile(input, multiples)", "keras.ops.tile(input, multiples)"),
    OpRow(
        "repeat(input, repeats, axis=None)",
        "keras.ops.repeat(input, repeats, axis=axis)",
        adapt=(("repeats", "as_array"),),
    ),
    OpRow("roll(input, shift, axis)", "keras.ops.roll(input, shift, axis=axis)"),
    OpRow("reverse(tensor, axis)", "keras.ops.flip(tensor, axis=axis)"),
    OpRow(
        "pad(tensor, paddings, mode='CONSTANT', constant_values=0)",
        "keras.ops.pad(tensor, paddings, mode=mode, constant_values=constant_values)",
        adapt=(("mode", "lower_word"),),
    ),
]

INDEXING = [
    OpRow(
        "gather(params, indices, validate_indices=None, axis=0, batch_dims=0)",
        "keras.ops.take(params, indices, axis=axis)",
        always=("axis",),
        adapt=(("axis", "zero_for_none"),),
    ),
    OpRow("nn.embedding_lookup(params, ids)", "keras.ops.take(params, ids, axis=0)"),
    OpRow("scatter_nd(indices, updates, shape)", "keras.ops.scatter(indices, updates, shape)"),
    OpRow("tensor_scatter_nd_update(tensor, indices, updates)", "keras.ops.scatter_update(tensor, indices, updates)"),
]

CONTROL_FLOW = [
    OpRow("cond(pred, true_fn, false_fn)", "keras.ops.cond(pred, true_fn, false_fn)"),
    OpRow(
        "while_loop(cond, body, loop_vars, shape_invariants=None, *, maximum_iterations=None)",
        "keras.ops.while_loop(cond, body, loop_vars, maximum_iterations=maximum_iterations)",
    ),
    OpRow("map_fn(fn, elems)", "keras.ops.map(fn, elems)"),
    OpRow("vectorized_map(fn, elems)", "keras.ops.vectorized_map(fn, elems)"),
    OpRow("is_tensor(x)", "keras.ops.is_tensor(x)"),
]

OPS = [*MAKING, *SHAPING, *INDEXING, *CONTROL_FLOW]
