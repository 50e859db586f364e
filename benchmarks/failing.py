"""A training that fails on purpose, for `benchmarks/first_minute.py`: `python benchmarks/failing.py step`.

step       a loop on eight devices, whose step gives the model inputs of a wrong shape
fit        the same in `Model.fit`
0, 1, 2    a loop on several workers (`replicax run`), in which the one of this number fails after some steps
"""

import os
import sys

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np

import replicax as rx

BATCH = 120
where = sys.argv[1]
features = 7 if where in ("step", "fit") else 20

if features == 7:
    rx.config.set_virtual_devices(8)
    strategy = rx.MirroredStrategy()
else:
    strategy = rx.MultiWorkerMirroredStrategy()

with strategy.scope():
    model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(3)])
    optimizer = keras.optimizers.SGD(0.1)

rng = np.random.default_rng(0)
x = rng.normal(size=(6 * BATCH, 20)).astype("float32")
y = x[:, :3].argmax(axis=1)
per_example_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


def train_step(batch):
    x, y = batch

    def loss_fn():
        logits = model(x[:, :features], training=True)
        return rx.compute_average_loss(per_example_loss(y, logits), global_batch_size=BATCH)

    loss, grads = rx.value_and_grad(loss_fn, model.trainable_variables)()
    optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
    return loss


@rx.function
def distributed_train_step(batch):
    return strategy.reduce("sum", strategy.run(train_step, args=(batch,)), axis=None)


if where == "fit":
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(x[:, :features], y, batch_size=BATCH, verbose=0)

for number, batch in enumerate(strategy.distribute_dataset((x, y), batch_size=BATCH)):
    loss = distributed_train_step(batch)
    print(f"step {number}: loss {float(loss):.3f}")
    if number == 3 and where == str(strategy.worker_index):
        raise RuntimeError("the disk is full")
