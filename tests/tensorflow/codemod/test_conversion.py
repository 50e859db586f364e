"""A whole conversion: imports, formatting, what stays, and scripts of all kinds of shapes."""

import pytest

from replicax.errors import ArgumentError
from replicax.tensorflow.codemod.conversion import convert
from tests.tensorflow.codemod.converted import conversion, converted


def test_imports_are_replaced_added_and_sorted():
    found = conversion(
        '''
        """A script."""

        from __future__ import annotations

        # Helpers.
        import os
        import numpy as np
        import tensorflow as tf  # the framework
        from tensorflow.keras.layers import Dense, Flatten as Flat

        strategy = tf.distribute.MirroredStrategy()
        model = tf.keras.Sequential([Flat(), Dense(np.int32(3))])
        '''
    )
    assert found.after == (
        '''"""A script."""

from __future__ import annotations

# Helpers.
import os

import numpy as np

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
from keras.layers import Dense
from keras.layers import Flatten as Flat

import replicax as rx

strategy = rx.MirroredStrategy()
model = keras.Sequential([Flat(), Dense(np.int32(3))])
'''
    )


def test_the_layout_of_what_stays_is_kept():
    text = (
        "import tensorflow as tf\n\n"
        "x = {'a':1,   'b' : [ 1,2 ]}   # a table\n"
        "def f( a ) :\n  return  a\n"
        "strategy = tf.distribute.get_strategy( )   # here\n"
        "y = f( x ) ; z = 1\n"
    )
    assert conversion(text).after == (
        "import replicax as rx\n\n"
        "x = {'a':1,   'b' : [ 1,2 ]}   # a table\n"
        "def f( a ) :\n  return  a\n"
        "strategy = rx.get_strategy()  # here\n"
        "y = f( x ) ; z = 1\n"
    )


@pytest.mark.parametrize("end", ["\r\n", "\n"])
@pytest.mark.parametrize("indent", ["\t", "  ", "    "])
def test_line_endings_and_indentation_are_kept(end, indent):
    text = f"import tensorflow as tf\n\nif True:\n{indent}strategy = tf.distribute.get_strategy()\n{indent}x = 1\n"
    after = conversion_of_lines(text.replace("\n", end))
    assert after == f"import replicax as rx\n\nif True:\n{indent}strategy = rx.get_strategy()\n{indent}x = 1\n".replace(
        "\n", end
    )


def conversion_of_lines(text: str) -> str:
    after = convert(text).after
    assert convert(after).after == after
    return after


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x = 1",
        "import keras\nkeras.layers.Dense(1)\n",
        "import jax\n# tensorflow as tf\ntf = None\ntf.function\n",
        "from .tensorflow import tf\ntf.function\n",
        "def f(tf):\n    return tf.function\n",
    ],
)
def test_a_script_without_tensorflow_is_not_changed(text):
    assert convert(text) == (text, text, ())


def test_a_name_of_ones_own_is_not_taken_for_tensorflows():
    text = "import tensorflow as tf\n\ndef f(tf):\n    return tf.function\n"
    assert "def f(tf):\n    return tf.function\n" in convert(text).after


def test_a_module_that_is_needed_twice_stays_and_what_is_converted_is_written_out():
    text = "from tensorflow.experimental import dtensor\nx = dtensor.create_mesh(m)\ny = dtensor.create_tpu_mesh(m)\n"
    after = convert(text).after
    assert "from tensorflow.experimental import dtensor\n" in after
    assert "x = rx.dtensor.create_mesh(m)\n" in after
    assert "y = dtensor.create_tpu_mesh(m)\n" in after


def test_an_import_that_may_fail():
    text = "try:\n    import tensorflow as tf\nexcept ImportError:\n    tf = None\nx = tf.distribute.get_strategy()\n"
    assert conversion(text).after.endswith("except ImportError:\n    tf = None\nx = rx.get_strategy()\n")


def test_a_name_with_two_meanings_is_a_finding():
    text = "if new:\n    import tensorflow as tf\nelse:\n    import other as tf\nx = tf.distribute.get_strategy()\n"
    found = conversion(text)
    assert [(each.line, each.name) for each in found.edits] == [(2, "tf")]
    assert "x = tf.distribute.get_strategy()" in found.after


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("from spark_tensorflow_distributor import MirroredStrategyRunner", "spark_tensorflow_distributor"),
        ("import horovod.tensorflow as hvd", "horovod.tensorflow"),
        ("import tensorflow_hub as hub", "tensorflow_hub"),
    ],
)
def test_packages_upon_tensorflow_are_refused(line, name):
    found = conversion(f"{line}\nimport tensorflow as tf\ntf.square(2.0)\n")
    assert [(each.line, each.name) for each in found.edits] == [(1, name)]
    assert f"# replicax: {name}: It is built on TensorFlow" in found.after
    assert line in found.after


def test_packages_of_data_stay():
    assert not conversion("import tensorflow as tf\nimport tensorflow_datasets as tfds\ntfds.load('mnist')\n").edits


def test_star_imports_are_refused():
    found = conversion("from tensorflow.keras.layers import *\nDense(3)\n")
    assert [(each.line, each.name) for each in found.edits] == [(1, "tensorflow.keras.layers")]


@pytest.mark.parametrize("text", ["print 'x'\n", "def f(:\n", "x = 1\n  y = 2\n"])
def test_no_python(text):
    with pytest.raises(ArgumentError, match=r"old.py, line \d+.*is no Python 3 that can be parsed"):
        convert("import tensorflow as tf\n" + text, "old.py")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("from tensorflow.python.keras.layers import Dense", "from keras.layers import Dense"),
        ("from tensorflow.python.keras.layers.core import Dense", "from keras.layers import Dense"),
        ("from tensorflow.python.keras.utils.data_utils import Sequence as Dense", "import PyDataset as Dense"),
        ("import tensorflow as tf\nDense = tf.zeros_initializer", "keras.initializers.Zeros"),
        (
            "import tensorflow as tf\nDense = tf.random_normal_initializer(stddev=0.1)",
            "keras.initializers.RandomNormal(",
        ),
        ("import tensorflow as tf\nDense = tf.initializers.GlorotUniform()", "keras.initializers.GlorotUniform()"),
        ("import tensorflow as tf\nDense = tf.name_scope('a')", "keras.name_scope('a')"),
        ("from common import *  # mine\nDense = tf.zeros", "keras.ops.zeros"),
    ],
)
def test_names_that_are_private_old_or_brought_by_a_star_are_converted(before, after):
    conversion = convert(f"{before}\nprint(Dense)\n")
    assert after in conversion.after
    assert "tensorflow" not in conversion.after
    assert conversion.edits == ()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("from tensorflow.python.keras.engine.nothing import NoSuch as training", "Keras 3 has no keras."),
        ("from tensorflow.keras.layers import NoSuchLayer as training", "Keras 3 has no keras.layers.NoSuchLayer"),
        ("from tensorflow.python.ops import math_ops as training", "private to TensorFlow"),
        ("import tensorflow as tf\ntraining = tf.config.experimental.set_visible_devices([])", "JAX_PLATFORMS"),
    ],
)
def test_no_import_is_written_of_what_keras_does_not_have(line, words):
    conversion = convert(f"{line}\nprint(training)\n")
    assert [words in finding.reason for finding in conversion.edits] == [True]
    assert "tensorflow" in conversion.after


def test_a_script_whose_star_brings_no_tensorflow_is_left_alone():
    for text in ("from common import *\nprint(x)\n", "from common import *\ntf = 3\nprint(tf.real)\n"):
        assert convert(text).after == text


def test_a_wide_dtype_is_told_of_as_a_string_too():
    conversion = convert("import tensorflow as tf\nprint(tf.cast(x, 'float64'), tf.cast(x, 'float32'))\n")
    assert ["jax_enable_x64" in finding.reason for finding in conversion.findings] == [True]


def test_a_note_on_quotients_of_integers():
    text = "import tensorflow as tf\na = tf.constant([3])\nb = a / 2\nc = tf.cast(x, tf.int32) / a\nd = tf.abs(3.0)/2\n"
    assert [each.line for each in convert(text).findings if each.name == "/"] == [3, 4]


def test_statements_beside_one_that_goes_stay():
    text = """
        import tensorflow as tf
        x = 1; tf.config.set_soft_device_placement(True); y = tf.abs(x); z = 3  # three
        with tf.GradientTape() as tape: loss = f(x); seen = 2
        g = tape.gradient(loss, w); del tape; q = 3
        if x: tf.config.set_soft_device_placement(True); y = 4
        else: a = 1; b=2  # as it was
    """
    assert converted(text) == (
        "x = 1\ny = keras.ops.abs(x)\nz = 3  # three\n\n\n"
        "def loss_fn():\n    loss = f(x)\n    seen = 2\n    return loss\n\n\n"
        "g = rx.grad(loss_fn, w)()\nq = 3\nif x:\n    y = 4\nelse: a = 1; b=2  # as it was\n"
    )


def test_each_statement_of_a_line_has_its_comment():
    text = "import tensorflow as tf\n\nif x: y = 1; z = tf.new(y)\na = tf.new(2); b = 1; c = tf.new(3)\n"
    found = conversion(text)
    assert [each.line for each in found.edits] == [3, 4]
    assert found.after.count("# replicax: tf.new: ") == 3
    assert "\nb = 1\n" in found.after


def test_a_name_that_the_script_has_for_something_else_is_a_finding():
    found = conversion("import tensorflow as tf\nrx = 3\nstrategy = tf.distribute.MirroredStrategy()\nprint(rx)\n")
    assert [(each.line, each.name) for each in found.edits] == [(2, "rx")]


def test_the_old_keras_does_not_hide_the_new_one():
    for use in ("", "keras.backend.sum(x)\n"):
        after = convert(f"import tensorflow as tf\nfrom tensorflow import keras\nx = tf.zeros(3)\n{use}").after
        assert "import keras\n" in after
        assert "from tensorflow" not in after


def test_the_first_star_brings_tensorflow():
    text = "from a import \\\n    *\nx = tf.zeros([1])\nif x:\n    from b import *\n"
    assert converted(text).endswith("x = keras.ops.zeros([1])\nif x:\n    from b import *\n")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tf.custom_gradient", "jax.custom_vjp"),
        ("tf.io.read_file", "Python"),
        ("tf.train.load_checkpoint", "open_checkpoint"),
    ],
)
def test_names_without_a_counterpart_have_a_sentence(name, words):
    assert [words in each.reason for each in conversion(f"import tensorflow as tf\n{name}(x)\n").edits] == [True]
