# Copyright 2026 The replicax authors
# SPDX-License-Identifier: Apache-2.0
# Written for this corpus: images that are decoded, and options that let them come in any order

import small_data
import tensorflow as tf

FILES = small_data.tfrecords("png", small_data.image_rows(256, as_png=True))
AUTO = tf.data.AUTOTUNE


def decode_image(data):
    image = tf.image.decode_png(data, channels=1)
    image = tf.cast(image, tf.float32) / 255.0
    return tf.reshape(image, [28, 28, 1])


def read_labeled_tfrecord(example):
    features = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
    }
    example = tf.io.parse_single_example(example, features)
    image = decode_image(example["image"])
    label = tf.cast(example["label"], tf.int32)
    return image, label


def load_dataset(filenames, ordered=False):
    ignore_order = tf.data.Options()
    if not ordered:
        ignore_order.experimental_deterministic = False
    dataset = tf.data.TFRecordDataset(filenames, num_parallel_reads=AUTO)
    dataset = dataset.with_options(ignore_order)
    dataset = dataset.map(read_labeled_tfrecord, num_parallel_calls=AUTO)
    return dataset


def get_training_dataset():
    dataset = load_dataset(FILES)
    dataset = dataset.repeat()
    dataset = dataset.shuffle(2048)
    dataset = dataset.batch(32)
    dataset = dataset.prefetch(AUTO)
    return dataset


with tf.distribute.MirroredStrategy().scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input([28, 28, 1]),
            tf.keras.layers.Conv2D(4, 3, strides=2, activation="relu"),
            tf.keras.layers.GlobalAveragePooling2D(),
            tf.keras.layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=tf.keras.optimizers.SGD(0.1, momentum=0.9),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )

model.fit(get_training_dataset(), steps_per_epoch=8, epochs=3)
