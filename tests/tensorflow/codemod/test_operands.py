"""Lists and variables as arguments of functions that take tensors in TensorFlow, and parts of their results."""

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from tests.tensorflow.codemod.converted import conversion, reasons

X = np.array([[1.0, 4.0, 2.0], [3.0, 0.5, 6.0]], "float32")


def result(text: str, **names: object) -> np.ndarray:
    found = conversion(f"import tensorflow as tf\nX = [[1.0, 4.0, 2.0], [3.0, 0.5, 6.0]]\n{text}\n")
    assert not found.edits
    exec(compile(found.after, "<converted>", "exec"), names)
    return np.asarray(names["y"])


@pytest.mark.daily(3)
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("y = tf.nn.top_k(X).indices", [[1], [2]]),
        ("top = tf.math.top_k(X, k=2)\ny = top.values", [[4.0, 2.0], [6.0, 3.0]]),
        ("y = tf.math.in_top_k([1, 0], X, 1)", [True, False]),
        ("y = tf.math.unsorted_segment_sum(X, [1, 0], 2)", X[::-1]),
        ("y = tf.scatter_nd([[0], [2]], [5, 7], [3])", [5, 0, 7]),
        ("y = tf.meshgrid([1, 2], [3, 4])[0]", [[1, 2], [1, 2]]),
        ("y = tf.cast([255, 300], tf.uint8)", [255, 44]),
        ("y = tf.tile([1, 2], [2])", [1, 2, 1, 2]),
        ("y = tf.nn.softmax([0.0, 0.0])", [0.5, 0.5]),
        ("y = tf.where([True, False], [1, 2], [3, 4])", [1, 4]),
        ("y = tf.reduce_all([True, False])", False),
        ("y = tf.constant(X).shape.num_elements()", 6),
    ],
)
def test_lists_are_tensors(text, expected):
    np.testing.assert_allclose(result(text), expected)


@pytest.mark.parametrize("make", [keras.Variable, rx.Variable, jnp.asarray], ids=["keras", "replicax", "array"])
@pytest.mark.parametrize("name", ["zeros_like", "ones_like"])
def test_what_is_like_a_variable(make, name):
    found = result(f"y = tf.{name}(v)", v=make(X))
    np.testing.assert_array_equal(found, getattr(np, name)(X))
    assert found.dtype == np.float32


@pytest.mark.parametrize("value", ["2**40", "1 << 33", "[1, 3000000000]", "-3000000000"])
def test_integers_beyond_32_bits_are_a_finding(value):
    (reason,) = reasons(f"import tensorflow as tf\nx = tf.constant({value})\n")
    assert "beyond 32 bits" in reason
