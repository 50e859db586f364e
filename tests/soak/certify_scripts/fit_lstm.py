"""`Model.fit` of an LSTM."""

import keras
import numpy as np

import replicax as rx

keras.utils.set_random_seed(4)
strategy = rx.MirroredStrategy()
replicas = strategy.num_replicas_in_sync
with strategy.scope():
    model = keras.Sequential([keras.layers.Embedding(20, 8), keras.layers.LSTM(12), keras.layers.Dense(1)])
    model.build((None, 10))
    model.compile(keras.optimizers.SGD(0.1), "mse")
x = np.random.default_rng(0).integers(0, 20, (128, 10))
y = (x == 3).sum(1, keepdims=True).astype("float32")
model.fit(x, y, batch_size=32, epochs=1, verbose=0, shuffle=False)
