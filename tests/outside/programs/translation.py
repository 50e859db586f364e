"""Sequence to sequence with attention: reads digits, writes them backwards.

After https://www.tensorflow.org/text/tutorials/nmt_with_attention and
https://www.tensorflow.org/tutorials/distribute/custom_training: GRUs, cross-attention, teacher forcing, and a loss that
leaves padding out. The loss is divided by the tokens of the *global* batch, which the replicas add up.
"""

from __future__ import annotations

import keras
import numpy as np
from keras import layers, ops

import replicax as rx  # tf

LETTERS, LENGTH, WIDTH, BATCH = 12, 7, 20, 32
START = LETTERS - 1
strategy = rx.MirroredStrategy()  # +


def sentences(rows):
    """Sequences of 3 to 7 letters, padded with zeros, and the same backwards."""
    rng = np.random.default_rng(0)
    source = rng.integers(1, START, (rows, LENGTH))
    lengths = rng.integers(3, LENGTH + 1, rows)
    source[np.arange(LENGTH) >= lengths[:, None]] = 0
    target = np.zeros_like(source)
    for row, length in enumerate(lengths):
        target[row, :length] = source[row, :length][::-1]
    return source, target


def batches():
    source, target = sentences(180)
    for i in range(0, len(source), BATCH):
        x, y = source[i : i + BATCH], target[i : i + BATCH]
        yield x, y


class Translator(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.embed_source = layers.Embedding(LETTERS, WIDTH, mask_zero=True)
        self.embed_target = layers.Embedding(LETTERS, WIDTH)
        self.encoder = layers.Bidirectional(layers.GRU(WIDTH // 2, return_sequences=True))
        self.decoder = layers.GRU(WIDTH, return_sequences=True)
        self.attention = layers.MultiHeadAttention(num_heads=1, key_dim=WIDTH)
        self.norm, self.logits = layers.LayerNormalization(), layers.Dense(LETTERS)

    def call(self, inputs):
        source, shifted = inputs
        memory = self.encoder(self.embed_source(source))
        hidden = self.decoder(self.embed_target(shifted))
        context = self.attention(hidden, memory, attention_mask=ops.not_equal(source, 0)[:, None, :])
        return self.logits(self.norm(hidden + context))


def main():
    # - dataset = list(batches())
    dataset = strategy.distribute_dataset(list(batches()))  # +
    with strategy.scope():  # +
        model = Translator()
        optimizer = keras.optimizers.Adam(5e-3, global_clipnorm=1.0)
        accuracy = keras.metrics.SparseCategoricalAccuracy()

    def train_step(source, target):
        weight = ops.cast(ops.not_equal(target, 0), keras.config.floatx())
        shifted = ops.concatenate([ops.full_like(target[:, :1], START), target[:, :-1]], axis=1)
        tokens = ops.sum(weight)
        tokens = rx.get_replica_context().all_reduce("sum", tokens)  # +

        def loss_fn():  # tf
            logits = model((source, shifted), training=True)
            losses = keras.losses.sparse_categorical_crossentropy(target, logits, from_logits=True)
            accuracy.update_state(target, logits, sample_weight=weight)
            return ops.sum(losses * weight) / tokens

        loss, grads = rx.value_and_grad(loss_fn, model.trainable_variables)()  # tf
        optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
        return loss

    # - step = rx.function(train_step)
    @rx.function  # +
    def step(source, target):  # +
        return strategy.reduce("sum", strategy.run(train_step, args=(source, target)), axis=None)  # +

    losses = []
    for _ in range(2):
        for source, target in dataset:
            losses.append(step(source, target))
    return model.get_weights(), [*losses, accuracy.result()]


if __name__ == "__main__":
    print(*main()[1], sep="\n")
