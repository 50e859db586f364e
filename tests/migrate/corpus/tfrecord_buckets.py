# Copyright 2026 The replicax authors
# SPDX-License-Identifier: Apache-2.0
# Written for this corpus: sentences of about one length in each batch

import small_data
import tensorflow as tf

small_data.tfrecords("sentences", small_data.sentence_rows(), files=3)


def parse(record):
    features = tf.io.parse_single_example(
        record,
        {
            "words": tf.io.FixedLenSequenceFeature([], tf.int64, allow_missing=True),
            "weight": tf.io.FixedLenFeature([1], tf.float32),
            "label": tf.io.FixedLenFeature([], tf.int64),
        },
    )
    return tf.cast(features["words"], tf.int32), tf.cast(features["label"], tf.float32)


files = tf.data.Dataset.list_files("sentences/*.tfrecord", shuffle=False)
dataset = files.flat_map(tf.data.TFRecordDataset)
dataset = dataset.map(parse)
dataset = dataset.filter(lambda words, label: tf.shape(words)[0] > 3)
dataset = dataset.bucket_by_sequence_length(
    element_length_func=lambda words, label: tf.shape(words)[0],
    bucket_boundaries=[8, 14],
    bucket_batch_sizes=[16, 16, 8],
    drop_remainder=True,
)

strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Embedding(50, 4),
            tf.keras.layers.GlobalAveragePooling1D(),
            tf.keras.layers.Dense(1),
        ]
    )
    model.compile(tf.keras.optimizers.SGD(0.5), tf.keras.losses.BinaryCrossentropy(from_logits=True))

model.fit(dataset, epochs=2)
