"""Elementwise functions, comparisons, reductions and linear algebra."""

from __future__ import annotations

from replicax.tensorflow.codemod.notes import QUOTIENT
from replicax.tensorflow.codemod.op_row import OpRow, renamed

INTEGER_MEAN = "of integers TensorFlow's result is an integer, rounded towards zero, and that of Keras is a float"
NARROW_INTEGERS = "of integers narrower than 32 bits TensorFlow's result keeps the dtype, and that of Keras has 32 bits"
INDEX_DTYPE = "TensorFlow's result is int64, that of Keras on JAX int32"
ZERO = (("axis", "zero_for_none"),)

ELEMENTWISE = [
    *renamed("abs acos:arccos acosh:arccosh asin:arcsin asinh:arcsinh atan:arctan atanh:arctanh cos cosh exp floor"),
    *renamed("negative round sigmoid sign sin sinh sqrt square tan tanh"),
    *renamed("ceil conj erf erfinv erfc expm1 is_finite:isfinite is_inf:isinf is_nan:isnan log log1p", "math."),
    *renamed("reciprocal rsqrt", "math."),
    *[OpRow(f"math.{name}(input)", f"keras.ops.{name}(input)") for name in ("imag", "real")],
    *[OpRow(f"nn.{name}(features)", f"keras.ops.{name}(features)") for name in ("softsign", "relu6", "relu", "selu")],
    OpRow("math.softplus(features)", "keras.ops.softplus(features)"),
    OpRow("math.log_sigmoid(x)", "keras.ops.log_sigmoid(x)"),
    OpRow("math.sigmoid(x)", "keras.ops.sigmoid(x)"),
    OpRow("logical_not(x)", "keras.ops.logical_not(x)"),
    OpRow("cast(x, dtype)", "keras.ops.cast(x, dtype)"),
    OpRow("saturate_cast(value, dtype)", "keras.ops.saturate_cast(value, dtype)"),
    OpRow("clip_by_value(t, clip_value_min, clip_value_max)", "keras.ops.clip(t, clip_value_min, clip_value_max)"),
    OpRow("stop_gradient(input)", "keras.ops.stop_gradient(input)"),
    OpRow("identity(input)", "keras.ops.convert_to_tensor(input)"),
]

BINARY = [
    *renamed(
        "add equal greater greater_equal less less_equal logical_and logical_or maximum minimum multiply",
        arguments="x, y",
    ),
    *renamed("not_equal pow:power subtract", arguments="x, y"),
    *renamed("logical_xor floordiv:floor_divide floormod:mod", "math.", arguments="x, y"),
    OpRow("divide(x, y)", "keras.ops.divide(x, y)", note=QUOTIENT),
    OpRow("truediv(x, y)", "keras.ops.divide(x, y)", note=QUOTIENT),
    OpRow("atan2(y, x)", "keras.ops.arctan2(y, x)"),
    OpRow("math.divide_no_nan(x, y)", "keras.ops.divide_no_nan(x, y)"),
    OpRow("math.squared_difference(x, y)", "keras.ops.square(keras.ops.subtract(x, y))"),
    OpRow("scalar_mul(scalar, x)", "keras.ops.multiply(scalar, x)"),
    OpRow("add_n(inputs)", "sum(inputs)"),
    OpRow("where(condition, x, y)", "keras.ops.where(condition, x, y)"),
]

_REDUCED = "(input_tensor, axis=None, keepdims=False)"


def _reduction(source: str, target: str, note: str = "") -> OpRow:
    template = f"keras.ops.{target}(input_tensor, axis=axis, keepdims=keepdims)"
    return OpRow(source + _REDUCED, template, note=note)


REDUCTIONS = [
    _reduction("reduce_all", "all"),
    _reduction("reduce_any", "any"),
    _reduction("reduce_logsumexp", "logsumexp"),
    _reduction("reduce_max", "max"),
    _reduction("reduce_mean", "mean", INTEGER_MEAN),
    _reduction("reduce_min", "min"),
    _reduction("reduce_prod", "prod", NARROW_INTEGERS),
    _reduction("reduce_sum", "sum", NARROW_INTEGERS),
    _reduction("math.reduce_std", "std"),
    _reduction("math.reduce_variance", "var"),
    OpRow("math.count_nonzero(input, axis=None)", "keras.ops.count_nonzero(input, axis=axis)", note=INDEX_DTYPE),
    *[
        OpRow(
            f"{name}(input, axis=0, output_type=tf.int64)",
            f"keras.ops.{name}(input, axis=axis)",
            always=("axis",),
            adapt=ZERO,
            note=INDEX_DTYPE,
            ignored=("output_type",),
        )
        for name in ("argmax", "argmin")
    ],
    OpRow("cumsum(x, axis=0)", "keras.ops.cumsum(x, axis=axis)", always=("axis",), note=NARROW_INTEGERS),
    OpRow("math.cumprod(x, axis=0)", "keras.ops.cumprod(x, axis=axis)", always=("axis",), note=NARROW_INTEGERS),
    OpRow(
        "norm(tensor, ord='euclidean', axis=None, keepdims=None)",
        "keras.ops.norm(tensor, axis=axis, keepdims=keepdims)",
    ),
    OpRow(
        "math.l2_normalize(x, axis, epsilon=1e-12)",
        "keras.ops.normalize(x, axis=axis, epsilon=epsilon)",
        always=("epsilon",),
        adapt=(("axis", "one_axis"), ("epsilon", "square_root")),
    ),
    OpRow("nn.l2_loss(t)", "keras.ops.divide(keras.ops.sum(keras.ops.square(t)), 2)"),
    OpRow("nn.zero_fraction(value)", "keras.ops.mean(keras.ops.cast(keras.ops.equal(value, 0), 'float32'))"),
    OpRow("nn.moments(x, axes, shift=None, keepdims=False)", "keras.ops.moments(x, axes, keepdims=keepdims)"),
    OpRow(
        "nn.batch_normalization(x, mean, variance, offset, scale, variance_epsilon)",
        "keras.ops.add(keras.ops.multiply(keras.ops.subtract(x, mean), keras.ops.multiply("
        "keras.ops.rsqrt(keras.ops.add(variance, variance_epsilon)), scale)), offset)",
        adapt=(("offset", "given"), ("scale", "given")),
    ),
    OpRow("math.top_k(input, k=1, sorted=True)", "keras.ops.top_k(input, k, sorted=sorted)"),
    OpRow("math.in_top_k(targets, predictions, k)", "keras.ops.in_top_k(targets, predictions, k)"),
    OpRow("sort(values, axis=-1)", "keras.ops.sort(values, axis=axis)"),
    OpRow("argsort(values, axis=-1)", "keras.ops.argsort(values, axis=axis)"),
    OpRow(
        "searchsorted(sorted_sequence, values, side='left')",
        "keras.ops.searchsorted(sorted_sequence, values, side=side)",
    ),
    OpRow(
        "math.unsorted_segment_sum(data, segment_ids, num_segments)",
        "keras.ops.segment_sum(data, segment_ids, num_segments=num_segments)",
    ),
]

LINEAR_ALGEBRA = [
    OpRow(
        "matmul(a, b, transpose_a=False, transpose_b=False)",
        "keras.ops.matmul(a, b)",
        adapt=(("a", "transposed_by:transpose_a"), ("b", "transposed_by:transpose_b")),
    ),
    OpRow("linalg.matvec(a, b)", "keras.ops.squeeze(keras.ops.matmul(a, keras.ops.expand_dims(b, -1)), -1)"),
    OpRow("linalg.matrix_transpose(a)", "keras.ops.swapaxes(a, -2, -1)"),
    OpRow("tensordot(a, b, axes)", "keras.ops.tensordot(a, b, axes=axes)"),
    OpRow("einsum(equation, *inputs)", "keras.ops.einsum(equation, *inputs)"),
    OpRow("linalg.cross(a, b)", "keras.ops.cross(a, b)"),
    OpRow("linalg.trace(x)", "keras.ops.trace(x, axis1=-2, axis2=-1)"),
    OpRow("linalg.det(input)", "keras.ops.det(input)"),
    OpRow("linalg.inv(input)", "keras.ops.inv(input)"),
    OpRow("linalg.cholesky(input)", "keras.ops.cholesky(input)"),
    OpRow("linalg.solve(matrix, rhs)", "keras.ops.solve(matrix, rhs)"),
    OpRow(
        "linalg.triangular_solve(matrix, rhs, lower=True)",
        "keras.ops.solve_triangular(matrix, rhs, lower=lower)",
        always=("lower",),
    ),
    OpRow("linalg.diag_part(input)", "keras.ops.diagonal(input, axis1=-2, axis2=-1)"),
    OpRow("linalg.tensor_diag(diagonal)", "keras.ops.diag(diagonal)"),
    OpRow("linalg.global_norm(t_list)", "keras.ops.sqrt(sum(keras.ops.sum(keras.ops.square(t)) for t in t_list))"),
    OpRow(
        "eye(num_rows, num_columns=None, batch_shape=None, dtype=tf.float32)",
        "keras.ops.eye(num_rows, M=num_columns, dtype=dtype)",
    ),
]

OPS = [*ELEMENTWISE, *BINARY, *REDUCTIONS, *LINEAR_ALGEBRA]
