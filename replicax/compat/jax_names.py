"""Names of JAX's primitives, by what replicax does with an equation of each: `equation.primitive.name`.

JAX promises none of them. A program in which an operation has got a new name is treated as one with an unknown
operation: slower, or refused, but right. `tests/compat/test_jax_names.py` tells which names a newer JAX lacks, and
that no other is used. A name of one version only has it beside it; it goes when that JAX is no longer supported.
"""

from __future__ import annotations

# Calls of a function, with the parameter that holds its program.

JIT = "jit"
# They can as well be written out. Their other parameters say where the results go, or how they are differentiated,
# which nobody will.
CALLS = {
    JIT: "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "closed_call": "call_jaxpr",  # JAX 0.10
}
# Code that is recomputed to save memory is inlined too where nobody will differentiate it.
RECOMPUTED = {"remat2": "jaxpr"}
SHARD_MAP = "shard_map"
# All calls whose program gets the operands of the call, and is there to be looked at.
ENTERED = {**CALLS, **RECOMPUTED, SHARD_MAP: "jaxpr"}
# The function gets the operands of the call.
CALLS_ON_OPERANDS = frozenset([*CALLS, *RECOMPUTED, SHARD_MAP, "composite", "custom_partitioning"])

# Operations that do more than compute with their operands.

# Calls of functions of the host, with what the user has called.
CALLBACKS = {
    "pure_callback": "jax.pure_callback",
    "io_callback": "jax.experimental.io_callback",
    "debug_callback": "jax.debug.callback",
}
STATEFUL = frozenset(["rng_uniform"])  # Their results depend on a device's own state.
# Collectives after which all replicas have the same value.
EQUALIZING_COLLECTIVES = frozenset(["psum", "psum_invariant", "pmax", "pmin", "all_gather", "all_gather_invariant"])
SUMS_OVER_AXES = frozenset(["psum", "psum_invariant"])
# Operations that name axes without communicating over them.
LOCAL_WITH_AXES = frozenset([
    "pvary", "axis_index", "replicax_assert_equal_over_axis",
    "vary_unreduced_cast",  # JAX 0.12
])  # fmt: skip
# They say where values are to be.
PLACEMENT = frozenset(["sharding_constraint", "reshard"])
# Written for certain devices.
PLACED = PLACEMENT | {SHARD_MAP}
# It draws as many random bits as its shape has numbers.
RANDOM_BITS = "random_bits"
# Written for the devices of a map, differentiated by a rule of their own, or dependent on settings of their place.
BOUND_TO_PLACE = PLACED | {"custom_jvp_call", "custom_vjp_call", RANDOM_BITS, "threefry2x32"}

# Operations on numbers.

NAME = "name"  # an identity that shows a name

ADDITIONS = frozenset(["add", "add_any", "sub"])
LOOPS = frozenset(["scan", "while"])
SCATTERS = frozenset(["scatter", "scatter-add", "scatter-max", "scatter-min", "scatter-mul", "scatter-sub"])
REDUCTIONS = frozenset(["reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "argmax", "argmin"])
ALL_REDUCTIONS = REDUCTIONS | {"reduce_and", "reduce_or"}
CUMULATIVE = frozenset(["cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum"])
# Each number of the result is made of the numbers at its place.
BY_ELEMENT = frozenset([
    "abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil",
    "clamp", "convert_element_type", "copy", "cos", "cosh", "div", "eq", "erf", "erf_inv", "erfc",
    "exp", "exp2", "expm1", "floor", "ge", "gt", "integer_pow", "is_finite", "le", "lgamma", "log", "log1p",
    "log2", "logistic", "lt", "max", "min", "mul", "name", "ne", "neg", "nextafter", "not", "one_minus_square", "or",
    "pow", "real", "reduce_precision", "rem", "round", "rsqrt", "select_n", "sign", "sin", "sinh", "sqrt", "square",
    "stop_gradient", "sub", "tan", "tanh", "xor",
])  # fmt: skip
# So are these of bits: each result has as many as the number it is made of; shifts and counts are numbers, too.
BITS_BY_ELEMENT = frozenset([
    "bitcast_convert_type", "population_count", "shift_left", "shift_right_arithmetic", "shift_right_logical",
])  # fmt: skip
# Of these each number of the result is zero where all operands are.
KEEP_ZEROS = frozenset([
    "abs", "add", "add_any", "asin", "asinh", "atan", "cbrt", "ceil", "convert_element_type", "copy", "erf", "expm1",
    "floor", "log1p", "max", "min", "name", "neg", "real", "reduce_precision", "round", "select_n", "sign", "sin",
    "sinh", "sqrt", "square", "stop_gradient", "sub", "tan", "tanh",
])  # fmt: skip
# The few of these that make the zeros which an accumulator is reset to.
ZERO_OF_ZEROS = frozenset(["broadcast_in_dim", "select_n", "mul", "add", "sub", "neg"])
# They pass a number on.
KEEP_NUMBERS = frozenset(["name", "convert_element_type", "reshape", "squeeze", "copy", "pvary", "reduce_precision"])
# They give each number another place.
MOVE_NUMBERS = KEEP_NUMBERS | {"transpose", "rev"}
# They take parts of an array, such as the last step of a loop.
TAKE_PARTS = frozenset(["slice", "dynamic_slice", "gather", "squeeze"])
# Each result is some of the entries of the operand, whatever they are.
REARRANGE = frozenset(["name", "reshape", "slice", "squeeze", "transpose"])
# They have one operand, and may as well be done after a sum as before it.
LINEAR_IN_ONE = frozenset(["copy", "neg", "reduce_sum", "reshape", "squeeze", "transpose"])
# Of parts of a sum they make parts of what they make of the sum.
PASS_PARTS_ON = LINEAR_IN_ONE | {"broadcast_in_dim", "convert_element_type", "name", "rev", "slice"}
# They combine two parts of a value, in any order.
COMBINING = ("add", "max", "min", "mul", "and", "or")
# They make first values of which each number is computed for itself, whatever part of the value it belongs to.
MADE_IN_PARTS = (BY_ELEMENT - {"name"}) | BITS_BY_ELEMENT | {
    "broadcast_in_dim", "concatenate", "iota", "pad", "random_bits", "random_fold_in", "random_seed", "random_split",
    "random_unwrap", "random_wrap", "reshape", "rev", "slice", "squeeze", "threefry2x32", "transpose",
}  # fmt: skip
# Of these a value is computed if all operands are constants.
ARITHMETIC = frozenset([
    "add", "sub", "mul", "div", "max", "min", "eq", "ne", "lt", "le", "gt", "ge", "select_n", "reduce_prod",
    "reduce_sum",
])  # fmt: skip
LARGEST_OR_SMALLEST = frozenset(["reduce_max", "reduce_min", "max", "min", "argmax", "argmin", "cummax", "cummin"])
# Of a sum they do not make the sum of what they make of its parts, whatever the other operand is.
NOT_ADDITIVE = LARGEST_OR_SMALLEST | {
    "reduce_prod", "integer_pow", "pow", "exp", "exp2", "log", "log2", "sqrt", "rsqrt", "cbrt", "square", "sign",
    "tanh", "logistic", "and", "or", "not", "xor", "eq", "ne", "lt", "le", "gt", "ge",
}  # fmt: skip
# They move, choose or convert numbers, and compute none.
WITHOUT_WORK = frozenset(["convert_element_type", "copy", "name", "select_n", "stop_gradient", "real", "clamp"])
# How much they compute, the program does not say: algorithms of libraries, and code of other languages.
UNKNOWN_WORK = frozenset([
    "call_exported", "cholesky", "eig", "eigh", "ffi_call", "fft", "geqrf", "householder_product", "io_callback", "lu",
    "pallas_call", "pure_callback", "qr", "ragged_dot_general", "svd", "triangular_solve", "tridiagonal_solve",
])  # fmt: skip
# They cost no more than sending their result.
CHEAP = frozenset([
    "abs", "add", "and", "broadcast_in_dim", "ceil", "clamp", "concatenate", "convert_element_type", "copy", "div",
    "dynamic_update_slice", "eq", "exp", "floor", "ge", "gt", "integer_pow", "is_finite", "le", "log", "lt", "max",
    "min", "mul", "ne", "neg", "not", "or", "pow", "reshape", "rsqrt", "scatter", "scatter-add", "select_n", "sign",
    "slice", "sqrt", "square", "squeeze", "stop_gradient", "sub", "xor",
])  # fmt: skip
