"""Random numbers: other numbers of the same shape, dtype and range."""

import keras
import numpy as np
import pytest

from replicax.tensorflow.codemod.tables import random_ops
from tests.tensorflow.codemod.converted import conversion, reasons


def drawn(code: str) -> np.ndarray:
    found = conversion(f"import tensorflow as tf\n\nx = {code}\n")
    assert not found.edits
    assert "the numbers are others" in " ".join(each.reason.lower() for each in found.findings)
    names: dict[str, object] = {}
    exec(compile(found.after, "<converted>", "exec"), names)
    return np.asarray(names["x"])


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    ("code", "dtype", "least", "most"),
    [
        ("tf.random.uniform([500])", "float32", 0, 1),
        ("tf.random.uniform((500,), 2.0, 3.0)", "float32", 2, 3),
        ("tf.random.uniform([500], maxval=5, dtype=tf.int32)", "int32", 0, 4),
        ("tf.random.uniform([500], minval=-2, maxval=2, dtype=tf.int32)", "int32", -2, 1),
        ("tf.random.truncated_normal([500], stddev=0.5)", "float32", -1, 1),
        ("tf.random.normal([500], mean=50.0)", "float32", 40, 60),
        ("tf.random.normal([500], 50.0, 2.0, tf.bfloat16)", "bfloat16", 30, 70),
    ],
)
def test_shape_dtype_and_range(code, dtype, least, most):
    x = drawn(code)
    assert x.shape == (500,)
    assert x.dtype == dtype
    assert least <= float(x.min())
    assert float(x.max()) <= most
    assert len(set(x.tolist())) > 3


def test_a_shuffled_tensor_has_the_same_rows():
    assert sorted(drawn("tf.random.shuffle(tf.constant([3, 1, 2, 4]))").tolist()) == [1, 2, 3, 4]


def test_categories_are_those_of_high_logits():
    x = drawn("tf.random.categorical(tf.constant([[0.0, 50.0], [50.0, 0.0]]), 4)")
    assert x.tolist() == [[1] * 4, [0] * 4]


def test_seeds_of_single_operations_are_refused():
    head = "import tensorflow as tf\n\n"
    found = reasons(f"{head}x = tf.random.normal([2], seed=1)\ny = tf.random.stateless_normal([2], seed=[1, 2])\n")
    assert [each.split(":")[0] for each in found] == ["3 tf.random.normal", "4 tf.random.stateless_normal"]


def test_targets_exist():
    for row in (*random_ops.ROWS, random_ops.UNIFORM, random_ops.INTEGERS):
        name = row.template.split("(")[0].rpartition(".")[2]
        assert callable(getattr(keras.random, name))
