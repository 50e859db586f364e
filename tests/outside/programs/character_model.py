"""A character language model: a small causal transformer continues a text.

After https://keras.io/examples/generative/text_generation_with_miniature_gpt/: token and position embeddings added by a
layer of one's own, a causal transformer block, and a callback that writes text after each epoch.
"""

from __future__ import annotations

import keras
import numpy as np
from keras import layers, ops

import replicax as rx  # +

LENGTH, WIDTH, BATCH = 16, 16, 32
TEXT = "to be or not to be that is the question whether it is nobler in the mind to suffer the slings and arrows " * 3
LETTERS = sorted(set(TEXT))
strategy = rx.MirroredStrategy()  # +


class TokenAndPosition(layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.token = layers.Embedding(len(LETTERS), WIDTH)
        self.position = layers.Embedding(LENGTH, WIDTH)

    def call(self, x):
        return self.token(x) + self.position(ops.arange(ops.shape(x)[-1]))


class Block(layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.attention = layers.MultiHeadAttention(4, WIDTH // 4, use_bias=False)
        self.feed_forward = keras.Sequential([layers.Dense(4 * WIDTH, activation="gelu"), layers.Dense(WIDTH)])
        self.norms = [layers.LayerNormalization(), layers.LayerNormalization()]
        self.dropout = layers.Dropout(0.1, seed=2)

    def call(self, x, training=None):
        y = self.norms[0](x)
        x = x + self.dropout(self.attention(y, y, use_causal_mask=True), training=training)
        return x + self.feed_forward(self.norms[1](x))


class Writer(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def on_epoch_end(self, epoch, logs=None):
        tokens = [LETTERS.index(letter) for letter in TEXT[:LENGTH]]
        for _ in range(3):
            logits = self.model.predict(np.array([tokens[-LENGTH:]]), verbose=0)
            tokens.append(int(logits[0, -1].argmax()))
        self.texts.append("".join(LETTERS[token] for token in tokens))


def windows():
    tokens = np.array([LETTERS.index(letter) for letter in TEXT])
    rows = np.stack([tokens[i : i + LENGTH + 1] for i in range(0, len(tokens) - LENGTH, 4)])
    return rows[:, :-1], rows[:, 1:]


def main():
    x, y = windows()
    with strategy.scope():  # +
        tokens = keras.Input((LENGTH,), dtype="int32")
        hidden = Block()(TokenAndPosition()(tokens))
        model = keras.Model(tokens, layers.Dense(len(LETTERS))(hidden))
        model.compile(keras.optimizers.AdamW(3e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = model.fit(x, y, batch_size=BATCH, epochs=2, callbacks=[Writer()], verbose=0)
    return model.get_weights(), history.history["loss"]


if __name__ == "__main__":
    print(*main()[1], sep="\n")
