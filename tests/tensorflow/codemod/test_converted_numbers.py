"""A converted loop computes what the same loop computes that was written for replicax by hand."""

import keras
import numpy as np

import replicax as rx
from tests.tensorflow.codemod.converted import conversion

SCRIPT = """
import numpy as np
import tensorflow as tf

tf.keras.utils.set_random_seed(1)
strategy = tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"])
x = np.linspace(-1, 1, 48, dtype="float32").reshape(12, 4)
y = x.sum(axis=1, keepdims=True)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(3), tf.keras.layers.Dense(1)])
    optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)
    per_row = tf.keras.losses.MeanSquaredError(reduction=tf.keras.losses.Reduction.NONE)


def train_step(batch):
    features, labels = batch
    with tf.GradientTape() as tape:
        predictions = model(features, training=True)
        loss = tf.nn.compute_average_loss(per_row(labels, predictions))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(CHANGED, model.trainable_variables))
    return loss


@tf.function
def step(batch):
    return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(train_step, args=(batch,)), axis=None)


losses = [float(step(batch)) for batch in strategy.experimental_distribute_dataset([(x, y)] * 4)]
"""


def by_hand(change):
    """Returns the losses; `change` is done to each replica's own gradients."""
    keras.utils.set_random_seed(1)
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    x = np.linspace(-1, 1, 48, dtype="float32").reshape(12, 4)
    y = x.sum(axis=1, keepdims=True)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)

    def train_step(batch):
        features, labels = batch

        def loss_fn():
            return rx.compute_average_loss(keras.ops.mean(keras.ops.square(model(features) - labels), axis=-1))

        loss, gradients = rx.value_and_grad(loss_fn, model.trainable_variables, aggregation=None)()
        summed = rx.get_replica_context().all_reduce("sum", [change(each) for each in gradients])
        optimizer.apply_gradients(zip(summed, model.trainable_variables, strict=True))
        return loss

    batches = strategy.distribute_dataset([(x, y)] * 4)
    return [float(strategy.reduce("sum", strategy.run(train_step, args=(batch,)))) for batch in batches]


def losses_of(script):
    found = conversion(script)
    assert not found.edits
    space: dict[str, object] = {"__name__": "converted"}
    exec(compile(found.after, "converted.py", "exec"), space)
    return space["losses"]


def test_gradients_that_go_to_the_optimizer_as_they_are():
    found = losses_of(SCRIPT.replace("CHANGED", "gradients"))
    np.testing.assert_allclose(found, by_hand(lambda gradient: gradient), rtol=1e-6)
    assert found[-1] < found[0]


def test_gradients_that_are_changed_on_each_replica():
    found = losses_of(SCRIPT.replace("CHANGED", "[tf.clip_by_value(g, -0.1, 0.1) for g in gradients]"))
    np.testing.assert_allclose(found, by_hand(lambda g: keras.ops.clip(g, -0.1, 0.1)), rtol=1e-6)
    assert not np.allclose(found, by_hand(lambda gradient: gradient), rtol=1e-3)
