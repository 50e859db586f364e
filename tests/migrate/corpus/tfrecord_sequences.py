# Copyright 2026 The replicax authors
# SPDX-License-Identifier: Apache-2.0
# Written for this corpus: sequence examples, padded to one length

import small_data
import tensorflow as tf

FILES = small_data.tfrecords("series", small_data.series_rows(), files=2)
STEPS = 12


def parse(record):
    context, sequences = tf.io.parse_single_sequence_example(
        record,
        context_features={"label": tf.io.FixedLenFeature([], tf.int64)},
        sequence_features={"values": tf.io.FixedLenSequenceFeature([2], tf.float32)},
    )
    return sequences["values"], tf.cast(context["label"], tf.int32)


dataset = tf.data.TFRecordDataset(FILES).map(parse)
dataset = dataset.padded_batch(16, padded_shapes=([STEPS, 2], []), drop_remainder=True)

strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input([STEPS, 2]),
            tf.keras.layers.Conv1D(8, 3, activation="relu"),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(3),
        ]
    )
    model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])

model.fit(dataset, epochs=3)
print(model.evaluate(dataset))
