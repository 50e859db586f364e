# Copyright 2026 The replicax authors
# SPDX-License-Identifier: Apache-2.0
# Written for this corpus: files that are listed and interleaved, for Model.fit

import small_data
import tensorflow as tf

small_data.tfrecords("data/train", small_data.image_rows())
small_data.tfrecords("data/test", small_data.image_rows(64), files=1)

AUTOTUNE = tf.data.AUTOTUNE
IMAGE_SIZE = [28, 28]

feature_description = {
    "image": tf.io.FixedLenFeature([], tf.string),
    "label": tf.io.FixedLenFeature([], tf.int64),
}


def parse_example(serialized):
    example = tf.io.parse_single_example(serialized, feature_description)
    image = tf.io.decode_raw(example["image"], tf.uint8)
    image = tf.reshape(image, [*IMAGE_SIZE, 1])
    image = tf.cast(image, tf.float32) / 255.0
    return image, tf.cast(example["label"], tf.int32)


def get_dataset(pattern, training):
    files = tf.data.Dataset.list_files(pattern, shuffle=training)
    dataset = files.interleave(tf.data.TFRecordDataset, cycle_length=4, num_parallel_calls=AUTOTUNE)
    dataset = dataset.map(parse_example, num_parallel_calls=AUTOTUNE)
    if training:
        dataset = dataset.shuffle(320)
    return dataset.batch(32).prefetch(AUTOTUNE)


strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input([*IMAGE_SIZE, 1]),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(32, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=tf.keras.optimizers.SGD(0.1),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

model.fit(
    get_dataset("data/train/*.tfrecord", True),
    validation_data=get_dataset("data/test/*.tfrecord", False),
    epochs=3,
)
