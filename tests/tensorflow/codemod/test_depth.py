"""Scripts that cannot be walked through are refused in one line."""

import pytest

from replicax.errors import ArgumentError
from replicax.tensorflow.codemod.conversion import convert

HEAD = "import tensorflow as tf\nx = tf.constant(1.0)\n"


@pytest.mark.parametrize(
    "expression",
    [
        " + ".join(["x"] * 2000),
        "tf.square(" * 190 + "x" + ")" * 190,
        "[" * 180 + "x" + "]" * 180,
        "(" * 5000 + "x" + ")" * 5000,
        "-" * 3000 + "x",
        "x" + ".T" * 3000,
        "x" + "[0]" * 1500,
        " if x else ".join(["x"] * 700),
    ],
    ids=["sum", "calls", "lists", "brackets", "signs", "attributes", "subscripts", "conditions"],
)
def test_a_deep_expression_is_refused_in_one_line(expression):
    with pytest.raises(ArgumentError, match=r"^train\.py.* is too deeply nested .*$"):
        convert(f"{HEAD}y = {expression}\n", "train.py")


def test_a_sum_of_two_thousand_terms_is_refused_with_its_line():
    with pytest.raises(ArgumentError, match=r"train.py, line 3 is too deeply nested"):
        convert(f"{HEAD}y = {' + '.join(['x'] * 2000)}\n", "train.py")


def test_a_sum_of_two_hundred_terms_is_converted():
    assert not convert(f"{HEAD}y = {' + '.join(['x'] * 200)}\n").edits


def test_a_nul_byte_is_refused_with_its_line():
    with pytest.raises(ArgumentError, match=r"train.py, line 3 has a NUL byte"):
        convert(f"{HEAD}y = '\0'\n", "train.py")
