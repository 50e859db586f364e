"""Steps of models that Keras 3 on JAX calls with a state."""

import pytest

from tests.tensorflow.codemod.converted import conversion, reasons

HEAD = "import tensorflow as tf\nclass Base(tf.keras.Model):\n    pass\n"


@pytest.mark.parametrize("base", ["tf.keras.Model", "tf.keras.Sequential", "Base"])
@pytest.mark.parametrize("name", ["train_step", "test_step", "predict_step"])
def test_a_step_of_a_model_is_a_finding(base, name):
    (reason,) = reasons(f"{HEAD}class M({base}):\n    def {name}(self, data):\n        return {{}}\n")
    assert f"calls `{name}(state, data)`" in reason


@pytest.mark.parametrize(
    "text",
    [
        "class M(tf.keras.Model):\n    def train_step(self, state, data):\n        return {}, state\n",
        "class Trainer:\n    def train_step(self, data):\n        return {}\n",
        "def train_step(self, data):\n    return {}\n",
    ],
)
def test_other_functions_of_the_name_are_not(text):
    assert not conversion(HEAD + text).edits
