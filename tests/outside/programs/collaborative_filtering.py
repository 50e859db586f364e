"""Collaborative filtering: embeddings of users and films, whose product is the rating.

After https://keras.io/examples/structured_data/collaborative_filtering_movielens/: a model subclass with four embedding
tables, regularised, and ratings scaled to between 0 and 1.
"""

from __future__ import annotations

import keras
import numpy as np
from keras import layers, ops

import replicax as rx  # +

USERS, FILMS, SIZE, BATCH = 40, 60, 8, 64
strategy = rx.MirroredStrategy()  # +


class Recommender(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        penalty = keras.regularizers.l2(1e-4)
        self.user = layers.Embedding(USERS, SIZE, embeddings_initializer="he_normal", embeddings_regularizer=penalty)
        self.film = layers.Embedding(FILMS, SIZE, embeddings_initializer="he_normal", embeddings_regularizer=penalty)
        self.user_bias = layers.Embedding(USERS, 1)
        self.film_bias = layers.Embedding(FILMS, 1)

    def call(self, inputs):
        user, film = inputs[:, 0], inputs[:, 1]
        match = ops.sum(self.user(user) * self.film(film), axis=1, keepdims=True)
        return ops.sigmoid(match + self.user_bias(user) + self.film_bias(film))


def ratings(rows):
    rng = np.random.default_rng(0)
    users, films = rng.normal(size=(USERS, 3)), rng.normal(size=(FILMS, 3))
    pairs = np.stack([rng.integers(0, USERS, rows), rng.integers(0, FILMS, rows)], axis=1)
    return pairs, 1 / (1 + np.exp(-np.sum(users[pairs[:, 0]] * films[pairs[:, 1]], axis=1, keepdims=True)))


def main():
    pairs, scores = ratings(630)
    with strategy.scope():  # +
        model = Recommender()
        model.compile(optimizer=keras.optimizers.Adam(1e-2), loss=keras.losses.BinaryCrossentropy())
    history = model.fit(pairs[:550], scores[:550], batch_size=BATCH, epochs=3, verbose=0)
    evaluated = model.evaluate(pairs[550:], scores[550:], batch_size=BATCH, verbose=0)
    return model.get_weights(), [*history.history["loss"], evaluated]


if __name__ == "__main__":
    print(*main()[1], sep="\n")
