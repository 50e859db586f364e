"""`Model.fit` with batch normalization and dropout, and batches that do not divide."""

import keras
import numpy as np

import replicax as rx

keras.utils.set_random_seed(3)
strategy = rx.MirroredStrategy()
replicas = strategy.num_replicas_in_sync
with strategy.scope():
    model = keras.Sequential(
        [
            keras.layers.Dense(24, use_bias=False),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(4),
        ]
    )
    model.build((None, 8))
    model.compile(
        keras.optimizers.Adam(1e-2),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
x = np.random.default_rng(0).normal(size=(150, 8)).astype("float32")
y = np.abs(x[:, :4]).argmax(1)
model.fit(x, y, batch_size=30, epochs=2, verbose=0)
