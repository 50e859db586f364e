"""A mixture of experts: a router sends each word to one of four small networks.

After https://keras.io/examples/nlp/text_classification_with_switch_transformer/: top-1 routing with a capacity for each
expert, and a loss, added by the router, that balances their load. Both look at all words of the *global* batch.
"""

from __future__ import annotations

import keras
import numpy as np
from keras import layers, ops

import replicax as rx  # +

WORDS, LENGTH, WIDTH, EXPERTS, BATCH = 50, 6, 12, 4, 32
strategy = rx.MirroredStrategy()  # +


class Router(layers.Layer):
    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.route = layers.Dense(EXPERTS)
        self.capacity = capacity

    def call(self, words):
        gate = ops.softmax(self.route(words))
        chosen = ops.one_hot(ops.argmax(gate, axis=-1), EXPERTS, dtype=gate.dtype)
        fraction, probability = ops.mean(chosen, axis=0), ops.mean(gate, axis=0)
        self.add_loss(0.01 * EXPERTS * ops.sum(fraction * probability))
        place = ops.cumsum(chosen, axis=0) * chosen
        return gate * chosen * ops.cast(place <= self.capacity, gate.dtype)


class Switch(layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.router = Router(capacity=2 * BATCH * LENGTH // EXPERTS)
        self.experts = [
            keras.Sequential([layers.Dense(2 * WIDTH, activation="tanh"), layers.Dense(WIDTH)]) for _ in range(EXPERTS)
        ]

    def call(self, x):
        words = ops.reshape(x, (-1, WIDTH))
        gate = self.router(words)
        outputs = ops.stack([expert(words) for expert in self.experts], axis=1)
        return x + ops.reshape(ops.sum(outputs * gate[..., None], axis=1), ops.shape(x))


def texts(rows):
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, WORDS, (rows, LENGTH))
    return tokens, ((tokens % 5 == 0).sum(axis=1) > 1).astype("int32")


def main():
    x, y = texts(300)
    with strategy.scope():  # +
        tokens = keras.Input((LENGTH,), dtype="int32")
        hidden = layers.LayerNormalization()(Switch()(layers.Embedding(WORDS, WIDTH)(tokens)))
        model = keras.Model(tokens, layers.Dense(2, "softmax")(layers.GlobalAveragePooling1D()(hidden)))
        model.compile(keras.optimizers.Adam(1e-2), "sparse_categorical_crossentropy", metrics=["accuracy"])
    history = model.fit(x, y, batch_size=BATCH, epochs=3, verbose=0)
    return model.get_weights(), history.history["loss"]


if __name__ == "__main__":
    print(*main()[1], sep="\n")
