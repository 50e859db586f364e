"""Calls of TensorFlow whose results are recorded: the inputs, and expressions over their names.

The expressions stand in op_cases.txt, one in a line; `cos sin | f | h` stands for four.

`record_ops.py` evaluates them with TensorFlow; tests/tensorflow/codemod/test_op_numbers.py translates each,
evaluates the translation with Keras on JAX, and compares.
"""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np


def inputs() -> dict[str, np.ndarray]:
    """Returns the arrays that cases name: floats, integers, booleans, bfloat16, and an empty one."""
    rng = np.random.default_rng(0)
    f = rng.normal(size=(2, 3)).astype("float32")
    square = rng.normal(size=(3, 3)).astype("float32")
    return {
        "f": f,
        "g": rng.normal(size=(2, 3)).astype("float32"),
        "p": np.abs(f) + np.float32(0.1),
        "u": np.clip(f / 4, -0.9, 0.9),
        "t": rng.normal(size=(2, 3, 4)).astype("float32"),
        "sq": square,
        "spd": square @ square.T + 3 * np.eye(3, dtype="float32"),
        "i": np.array([[3, -7, 0], [5, 2, -4]], "int32"),
        "j": np.array([[2, 3, 5], [-2, 7, 3]], "int32"),
        "b": np.array([[True, False, True], [False, False, True]]),
        "c": np.array([[False, False, True], [True, False, True]]),
        "h": f.astype(ml_dtypes.bfloat16),
        "e": np.zeros((0, 3), "float32"),
        "labels": np.array([2, 0], "int32"),
        "onehot": np.array([[0, 0, 1], [1, 0, 0]], "float32"),
        "zf": np.array([[1.0, 0.0, 2.0], [0.0, -3.0, 0.5]], "float32"),
        "image": rng.uniform(size=(1, 5, 6, 3)).astype("float32"),
        "bytes": rng.integers(0, 255, size=(1, 5, 6, 3)).astype("uint8"),
        "kernel": rng.normal(size=(2, 3, 3, 4)).astype("float32"),
        "depthwise": rng.normal(size=(2, 2, 3, 2)).astype("float32"),
        "signal": rng.normal(size=(1, 7, 3)).astype("float32"),
        "kernel1": rng.normal(size=(3, 3, 2)).astype("float32"),
        "index": np.array([[0], [2]], "int32"),
        "s": np.array([1.0, 2.0, 2.0, 5.0], "float32"),
        "nan": np.array([np.nan, 1.0, np.inf, -np.inf, 0.0], "float32"),
    }


def _each(names: str, *arguments: str) -> list[str]:
    return [f"tf.{name}({argument})" for name in names.split() for argument in arguments]


def _reductions() -> list[str]:
    shapes = ("", ", axis=-1", ", 0, True", ", axis=[0, 1]", ", axis=1, keepdims=True", ", axis=(-2,)")
    cases = []
    for shape in shapes:
        cases += _each("reduce_sum reduce_prod", f"f{shape}", f"i{shape}", f"e{shape}")
        cases += _each("reduce_max reduce_min", f"f{shape}", f"i{shape}", f"h{shape}")
        cases += _each("reduce_mean", f"f{shape}", f"e{shape}", f"h{shape}")
        cases += _each("reduce_all reduce_any", f"b{shape}")
        cases += _each("reduce_logsumexp math.reduce_std math.reduce_variance", f"f{shape}")
        cases += (
            _each("norm", f"f{shape.replace(', 0, True', ', axis=0, keepdims=True')}") if "(-2,)" not in shape else []
        )
        cases += _each("math.count_nonzero", f"zf{shape}") if "True" not in shape else []
    cases += ["tf.reduce_sum(input_tensor=h, axis=1)", "tf.reduce_mean(input_tensor=f, axis=1, name='m')"]
    cases += ["tf.math.reduce_mean(f, 1)", "tf.reduce_mean(i)", "tf.reduce_sum(bytes, axis=1)", "tf.reduce_max(nan)"]
    cases += ["tf.reduce_prod(bytes[0, :, :1, 0])", "tf.cumsum(bytes)", "tf.math.cumprod(bytes[0, :2, 0])"]
    return cases


def _written() -> list[str]:
    cases: list[str] = []
    for line in (Path(__file__).parent / "op_cases.txt").read_text().splitlines():
        parts = [part.strip() for part in line.split(" | ")]
        if not line.startswith("#"):
            cases += _each(parts[0], *parts[1:]) if len(parts) > 1 else parts
    return cases


#: Optimizers of TensorFlow 1, and of TensorFlow 2's `legacy`: three steps with each are recorded.
OPTIMIZERS = [
    "tf.compat.v1.train.GradientDescentOptimizer(0.1)",
    "tf.compat.v1.train.MomentumOptimizer(0.1, momentum=0.9)",
    "tf.compat.v1.train.AdagradOptimizer(0.1)",
    "tf.compat.v1.train.AdagradOptimizer(learning_rate=0.1, initial_accumulator_value=0.5)",
    "tf.compat.v1.train.AdamOptimizer(0.1)",
    "tf.compat.v1.train.AdamOptimizer(0.1, beta1=0.8, epsilon=0.001)",
]
GRADIENTS = [[0.5, -1.0, 0.001], [0.25, 2.0, -0.002], [-0.5, 0.125, 0.0]]


CASES = [*_written(), *_reductions()]
