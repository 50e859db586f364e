"""Notes on cross-entropies of probabilities."""

import pytest

from tests.tensorflow.codemod.converted import conversion

HEAD = "import tensorflow as tf\nmodel = tf.keras.Sequential()\n"


def lines(text: str) -> list[int]:
    found = conversion(HEAD + text)
    assert not found.edits
    return [each.line for each in found.findings if "from_logits=True" in each.reason]


@pytest.mark.parametrize(
    "text",
    [
        "loss = tf.keras.losses.SparseCategoricalCrossentropy()",
        "loss = tf.losses.BinaryCrossentropy(from_logits=False)",
        "loss = tf.keras.losses.sparse_categorical_crossentropy(tf.constant([0]), tf.constant([[0.5, 0.5]]))",
        "model.compile('sgd', loss='categorical_crossentropy')",
        "model.compile('sgd', loss=tf.keras.losses.sparse_categorical_crossentropy)",
        "model.compile('sgd', loss={'a': 'mse', 'b': 'binary_crossentropy'})",
        "model.compile('sgd', loss=tf.keras.losses.CategoricalCrossentropy())",
    ],
)
def test_a_loss_of_probabilities_gets_one_note(text):
    assert lines(text + "\n") == [3]


@pytest.mark.parametrize(
    "text",
    [
        "loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)",
        "model.compile('sgd', loss='mse')",
        "model.compile('sgd', loss=tf.keras.losses.CategoricalCrossentropy(from_logits=True))",
        "name = 'binary_crossentropy'",
    ],
)
def test_a_loss_of_logits_gets_none(text):
    assert lines(text + "\n") == []
