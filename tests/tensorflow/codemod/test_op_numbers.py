"""Every translated function of TensorFlow gives the numbers, shapes and dtypes that TensorFlow gave.

The results were recorded from TensorFlow by tests/migrate/record_ops.py.
"""

from __future__ import annotations

import base64
import json
import re
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import keras
import ml_dtypes
import numpy as np
import pytest

from replicax.tensorflow.codemod import tables
from replicax.tensorflow.codemod.conversion import Conversion, convert
from replicax.tensorflow.codemod.tables import estimators, tensors
from tests.each import each
from tests.migrate.op_cases import CASES, GRADIENTS, OPTIMIZERS, inputs

RECORDED = json.loads((Path(__file__).parent / "recorded" / "ops.json").read_text())
#: Of these the result differs by dtype or number, and the conversion says so.
DIFFERENT = {
    "tf.reduce_mean(i)": "tf.reduce_mean",
    "tf.reduce_sum(bytes, axis=1)": "tf.reduce_sum",
    "tf.reduce_prod(bytes[0, :, :1, 0])": "tf.reduce_prod",
}
NARROW = {"int64": "int32", "float64": "float32"}


@pytest.fixture(scope="module")
def conversion() -> Conversion:
    """All cases in one script, one in each line."""
    lines = [f"results[{index}] = {case}" for index, case in enumerate(CASES)]
    return convert("import tensorflow as tf\n\n" + "\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def results(conversion):
    """What the converted cases give."""
    names = {name: jnp.asarray(value) for name, value in inputs().items()}
    found: dict[int, object] = {}
    with jax.enable_x64(False), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Explicitly requested dtype")
        exec(compile(conversion.after, "<cases>", "exec"), {**names, "results": found, "keras": keras, "np": np})
    return found


@pytest.mark.nightly
def test_every_case_is_converted(conversion):
    assert [finding for finding in conversion.findings if finding.severity == "edit"] == []
    assert "tf." not in conversion.after.split("\n\n", 2)[2].replace("tf.float", "")


def test_there_is_a_recorded_result_for_every_case_and_a_case_for_every_row():
    assert list(RECORDED) == [*CASES, *OPTIMIZERS]
    called = {name for case in RECORDED for name in re.findall(r"tf\.[\w.]+(?=\()", case)}
    tested = {id(tables.RULES[name]) for name in called if name in tables.RULES}
    rows = (*tensors.ROWS, *estimators.ROWS)
    assert [row.name for row in rows if id(tables.RULES[row.name]) not in tested] == []


@pytest.mark.nightly
def test_the_numbers_are_those_of_tensorflow(results, conversion):
    noted = {finding.name for finding in conversion.findings if finding.severity == "note"}

    def check(case):
        if case in DIFFERENT:
            assert DIFFERENT[case] in noted
        else:
            _assert_same(RECORDED[case], results[places[case]])

    places = {case: place for place, case in enumerate(CASES)}
    assert len(places) == len(CASES)
    each(CASES, check)


def _assert_same(expected, found):
    if isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(expected, found, strict=True):
            _assert_same(one, other)
    elif expected is None or isinstance(expected, bool):
        assert found is expected
    else:
        _assert_same_array(expected, found)


def _assert_same_array(expected, found):
    dtype = np.dtype(getattr(ml_dtypes, expected["dtype"], expected["dtype"]))
    array = np.frombuffer(base64.b64decode(expected["data"]), dtype).reshape(expected["shape"])
    assert np.shape(found) == array.shape
    if not isinstance(found, int):  # A number of Python's, as of `keras.ops.size`, takes any dtype.
        assert found.dtype == NARROW.get(dtype.name, dtype.name)
    tolerance = 1e-2 if dtype == ml_dtypes.bfloat16 else 2e-6
    np.testing.assert_allclose(
        np.asarray(found, "float64"), array.astype("float64"), rtol=tolerance, atol=tolerance, equal_nan=True
    )


@pytest.mark.parametrize("code", OPTIMIZERS)
def test_an_optimizer_takes_the_steps_of_tensorflows(code):
    after = convert(f"import tensorflow as tf\n\noptimizer = {code}\n").after
    names: dict[str, object] = {}
    exec(compile(after, "<optimizer>", "exec"), names)
    variable = keras.Variable(np.array([1.0, -2.0, 3.0], "float32"))
    for gradient in GRADIENTS:
        names["optimizer"].apply([jnp.asarray(gradient, "float32")], [variable])
    _assert_same(RECORDED[code], variable.value)


def test_an_interpolation_may_be_named_by_tensorflows_constants():
    found = convert(
        "import tensorflow as tf\n\nx = tf.image.resize(x, [2, 2], tf.image.ResizeMethod.NEAREST_NEIGHBOR)\n"
    )
    assert found.after.endswith("x = keras.ops.image.resize(x, [2, 2], interpolation='nearest')\n")
    assert not found.edits
