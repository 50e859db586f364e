# Copyright 2026 The replicax authors
# SPDX-License-Identifier: Apache-2.0
# Written for this corpus: batches that are parsed, and mapped, as a whole

import small_data
import tensorflow as tf

FILES = small_data.tfrecords("images", small_data.image_rows(128), files=2)
feature_spec = {
    "image": tf.io.FixedLenFeature([], tf.string),
    "label": tf.io.FixedLenFeature([], tf.int64),
}


def parse_batch(records):
    features = tf.io.parse_example(records, feature_spec)
    images = tf.reshape(tf.io.decode_raw(features["image"], tf.uint8), [-1, 784])
    return tf.cast(images, tf.float32) / 255.0, features["label"]


dataset = tf.data.TFRecordDataset(FILES).batch(32).map(parse_batch)

model = tf.keras.Sequential([tf.keras.layers.Input([784]), tf.keras.layers.Dense(10)])
model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(dataset, epochs=2)
