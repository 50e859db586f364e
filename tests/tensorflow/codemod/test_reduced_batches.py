"""One note on means of batches that do not divide."""

import pytest

from tests.tensorflow.codemod.converted import conversion

HEAD = """import tensorflow as tf
strategy = tf.distribute.MirroredStrategy()
data = strategy.experimental_distribute_dataset(tf.data.Dataset.range(8).batch(3))
"""
LOOP = "for batch in data:\n    print(strategy.reduce({}, strategy.run(lambda x: x, args=(batch,)), axis=None))\n"


@pytest.mark.parametrize("op", ["'MEAN'", "tf.distribute.ReduceOp.SUM"])
def test_a_reduction_of_a_batch_gets_one_note(op):
    found = conversion(HEAD + LOOP.format(op) + LOOP.format(op)).findings
    assert [each.line for each in found if "does not divide" in each.reason] == [5]


def test_a_script_without_a_dataset_gets_none():
    text = (
        "import tensorflow as tf\nstrategy = tf.distribute.MirroredStrategy()\nstrategy.reduce('SUM', 1.0, axis=None)\n"
    )
    assert not [each for each in conversion(text).findings if "does not divide" in each.reason]
