# Copyright 2026 The replicax authors
# SPDX-License-Identifier: Apache-2.0
# Written for this corpus: rows that are drawn anew by their class, which nothing here does

import small_data
import tensorflow as tf

FILES = small_data.tfrecords("sentences", small_data.sentence_rows(), files=3)


def parse(record):
    features = tf.io.parse_single_example(
        record,
        {"words": tf.io.VarLenFeature(tf.int64), "label": tf.io.FixedLenFeature([], tf.int64)},
    )
    words = tf.reshape(tf.sparse.to_dense(features["words"])[:3], [3])
    return tf.cast(words, tf.float32), tf.cast(features["label"], tf.int32)


dataset = tf.data.TFRecordDataset(FILES).map(parse)
dataset = dataset.rejection_resample(class_func=lambda words, label: label, target_dist=[0.5, 0.5], seed=1)
dataset = dataset.map(lambda _, element: element).batch(16)

model = tf.keras.Sequential([tf.keras.layers.Input([3]), tf.keras.layers.Dense(2)])
model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(dataset, epochs=1)
