"""The smallest `Model.fit`: one unit learns that the label of 1 is 1.

This is the example of TensorFlow's guide to `tf.distribute`, and it prints the guide's losses. It differs in this:

- `tf.data` needs TensorFlow, so the dataset is Grain's, which reads the same. Keras does not ask a Grain dataset for
  its length: it has to be repeated without end, and `fit` and `evaluate` have to be told the number of batches.
- Keras 3 takes the shape of the inputs as `keras.Input((1,))`, not as an argument of the first layer.
- `fit` sees the global batch and XLA divides it, so 8 devices and batches of 10 need no care: the losses are those of
  one device. `tf.distribute` would give some replicas a row less.
- The guide's initial weight was drawn at random; here it is given, so that the losses can be compared.

    python examples/fit_seed.py
"""

from __future__ import annotations

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import grain
import keras
import numpy as np

import replicax as rx

rx.config.set_virtual_devices(8)  # only to try it without accelerators; real GPUs are used where there are some

INITIAL_WEIGHT = -0.780074

mirrored_strategy = rx.MirroredStrategy()

with mirrored_strategy.scope():
    weight = keras.initializers.Constant(INITIAL_WEIGHT)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer=weight)])

model.compile(loss="mse", optimizer="sgd")

# A dataset: the pair ([1.], [1.]) a hundred times, in global batches of 10.
pair = (np.ones(1, "float32"), np.ones(1, "float32"))
dataset = grain.MapDataset.source([pair]).repeat(100).batch(10)
steps, dataset = len(dataset), dataset.repeat()
model.fit(dataset, epochs=2, steps_per_epoch=steps, shuffle=False, verbose=2)
print("after the dataset:", model.evaluate(dataset, steps=steps, verbose=0))

# NumPy arrays.
inputs, targets = np.ones((100, 1)), np.ones((100, 1))
model.fit(inputs, targets, epochs=2, batch_size=10, verbose=2)
print("after the arrays:", model.evaluate(inputs, targets, batch_size=10, verbose=0))
