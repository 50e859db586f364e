"""Knowledge distillation: a small student learns from the soft answers of a larger teacher.

After https://keras.io/examples/vision/knowledge_distillation/: a model that holds two models and overrides
`compute_loss`; the teacher is trained first, then frozen.
"""

from __future__ import annotations

import keras
from keras import layers, ops
from sklearn.datasets import load_digits

import replicax as rx  # +

BATCH, TEMPERATURE, ALPHA = 64, 4.0, 0.2
strategy = rx.MirroredStrategy()  # +


class Distiller(keras.Model):
    def __init__(self, student, teacher) -> None:
        super().__init__()
        self.student = student
        self.teacher = teacher
        self.teacher.trainable = False

    def call(self, x):
        return self.student(x)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, allow_empty=False, training=True):
        hard = super().compute_loss(x, y, y_pred, sample_weight)
        soft_teacher = ops.softmax(self.teacher(x, training=False) / TEMPERATURE, axis=1)
        soft_student = ops.softmax(y_pred / TEMPERATURE, axis=1)
        soft = ops.mean(keras.losses.kl_divergence(soft_teacher, soft_student)) * TEMPERATURE**2
        return ALPHA * hard + (1 - ALPHA) * soft


def classifier(units):
    return keras.Sequential([keras.Input((64,)), layers.Dense(units, activation="tanh"), layers.Dense(10)])


def compiled(model):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-3), loss, metrics=["sparse_categorical_accuracy"])
    return model


def main():
    x, y = load_digits(return_X_y=True)
    x, y = x[:500] / 16, y[:500]
    with strategy.scope():  # +
        teacher = compiled(classifier(96))
        student = classifier(12)
    first = teacher.fit(x, y, batch_size=BATCH, epochs=2, verbose=0)
    with strategy.scope():  # +
        distiller = compiled(Distiller(student, teacher))
    second = distiller.fit(x, y, batch_size=BATCH, epochs=2, verbose=0)
    return distiller.get_weights(), first.history["loss"] + second.history["loss"]


if __name__ == "__main__":
    print(*main()[1], sep="\n")
