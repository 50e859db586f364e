# Copyright 2026 The replicax authors
# SPDX-License-Identifier: Apache-2.0
# Written for this corpus: compressed files, and elements of one dict

import glob

import small_data
import tensorflow as tf

small_data.tfrecords("compressed", small_data.image_rows(256), files=4, compressed=True)


def parse_fn(example_proto):
    spec = {
        "image": tf.io.FixedLenFeature([], tf.string, default_value=""),
        "label": tf.io.FixedLenFeature([1], tf.int64, default_value=0),
    }
    example = tf.io.parse_single_example(example_proto, features=spec)
    image = tf.io.decode_raw(example["image"], tf.uint8)
    image = tf.cast(image, tf.float32) / 255
    return {"pixels": tf.reshape(image, (784,))}, tf.cast(example["label"], tf.int32)


def input_fn(filenames, batch_size):
    dataset = tf.data.TFRecordDataset(filenames, compression_type="GZIP", buffer_size=8 * 1024)
    dataset = dataset.map(parse_fn)
    dataset = dataset.cache()
    dataset = dataset.shuffle(buffer_size=256, reshuffle_each_iteration=True)
    dataset = dataset.batch(batch_size, drop_remainder=True)
    return dataset.prefetch(1)


strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    inputs = tf.keras.Input((784,), name="pixels")
    x = tf.keras.layers.Dense(16, activation="tanh")(inputs)
    model = tf.keras.Model({"pixels": inputs}, tf.keras.layers.Dense(10)(x))
    model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))

filenames = sorted(glob.glob("compressed/*.tfrecord"))
model.fit(input_fn(filenames, 48), epochs=4, verbose=2)
