"""What first scripts of people who come from TensorFlow do, and Keras 3 or JAX would not."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest

import replicax as rx
from tests.tensorflow.codemod.converted import conversion, converted, reasons

HEAD = "import tensorflow as tf\nimport numpy as np\n"
NET = """class Net(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.drop, self.dense = tf.keras.layers.Dropout(0.5), tf.keras.layers.Dense(3)
    def call(self, x, training=False):
        return self.dense(self.drop(x, training=training))
"""


def run(text: str, **names: object) -> dict[str, object]:
    exec(compile(conversion(text).after, "<converted>", "exec"), names)
    return names


def test_a_model_of_a_class_without_build_is_built_by_a_call_and_restored(tmp_path: Path):
    model = keras.Sequential([keras.layers.Dropout(0.5), keras.layers.Dense(3)])
    model(np.ones((1, 4), "float32"))
    path = rx.Checkpoint(model=model).write(tmp_path / "c")
    text = HEAD + NET + "model = Net()\nmodel.build((None, 4))\n"
    text += "count = len(model.weights)\nstatus = tf.train.Checkpoint(model=model).restore(path)\n"
    found = run(text + "status.expect_partial()\n", path=path)
    assert found["count"] == 2
    np.testing.assert_array_equal(found["model"].dense.kernel, model.layers[1].kernel)


@pytest.mark.parametrize(
    ("line", "becomes"),
    [
        ("make().build(input_shape=[None, SIZE, 3])", "make()(keras.ops.zeros((1, SIZE, 3)))"),
        ("Own().build((None, 4))", None),
        ("Below().build((None, 4))", "Below()(keras.ops.zeros((1, 4)))"),
        ("tf.keras.Sequential([]).build((None, 4))", "keras.Sequential([]).build((None, 4))"),
    ],
)
def test_build_stays_where_it_builds(line: str, becomes: str | None):
    own = "class Own(Net):\n    def build(self, shape):\n        self.dense.build(shape)\n"
    made = "class Below(Net):\n    pass\ndef make():\n    return Net()\n"
    assert converted(HEAD + NET + own + made + line).splitlines()[-1] == (becomes or line)


def test_a_shape_that_is_not_written_out_is_a_finding():
    (reason,) = reasons(HEAD + NET + "model = Net()\nmodel.build(shape)")
    assert "call the model once on zeros" in reason


def test_a_restore_says_itself_that_it_is_partial():
    made = "c = tf.train.Checkpoint(w=w)\nmanager = tf.train.CheckpointManager(c, 'd', max_to_keep=1)\n"
    text = f"{HEAD}{made}manager.checkpoint.restore(p).expect_partial()\ns = c.restore(p)\ns.expect_partial()\ns.x()"
    *_, chained, assigned, rest = converted(text).splitlines()
    assert chained == "manager.checkpoint.restore(p, partial=True)"
    assert (assigned, rest) == ("s = c.restore(p, partial=True)", "s.x()")
    (reason,) = reasons(HEAD + "status().expect_partial()")
    assert "restore(path, partial=True)" in reason


def test_tensors_of_local_results_are_brought_to_one_place_first():
    text = (
        "strategy = tf.distribute.MirroredStrategy(devices)\n"
        "for batch in strategy.experimental_distribute_dataset(rows):\n"
        "    doubled = strategy.run(lambda x: x * 2, args=(batch,))\n"
        "local = strategy.experimental_local_results(doubled)\n"
        "found = [tf.concat(strategy.experimental_local_results(doubled), axis=0), tf.concat(local, 0)]\n"
        "found += [tf.add_n(local), tf.stack(local), tf.reduce_sum(local)]\n"
    )
    rows = np.arange(8, dtype="float32")
    found = run(HEAD + text, devices=["cpu:0", "cpu:1"], rows=[rows])["found"]
    halves = rows.reshape(2, 4) * 2
    for each, expected in zip(found, [rows * 2, rows * 2, halves.sum(0), halves, halves.sum()], strict=True):
        np.testing.assert_array_equal(each, expected)


def test_what_means_nothing_behind_the_conversion_goes():
    text = (
        "AUTOTUNE = tf.data.AUTOTUNE\n"
        "ds = tf.data.Dataset.range(4).map(lambda a: a, num_parallel_calls=AUTOTUNE).prefetch(AUTOTUNE)\n"
        "options = tf.data.Options()\n"
        "options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA\n"
        "ds = ds.with_options(options)\n"
        "step = tf.Variable(0, dtype=tf.int64)\n"
        "tf.print('step', step)\n"
        "f = lambda x: tf.print(x)\n"
    )
    found = conversion(HEAD + text)
    assert "rx.InputOptions(auto_shard_policy=" in " ".join(each.reason for each in found.findings)
    assert found.after.splitlines()[-4:] == [
        "ds = grain.MapDataset.range(4).map(lambda a: a)",
        'step = rx.Variable(0, dtype="int32")',
        "print('step', step)",
        'f = lambda x: jax.debug.print("{}", x)',
    ]
