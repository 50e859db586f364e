# Copyright 2026 The replicax authors
# SPDX-License-Identifier: Apache-2.0
# Written for this corpus: sentences of different lengths, padded to the longest of a batch

import small_data
import tensorflow as tf

FILES = small_data.tfrecords("sentences", small_data.sentence_rows(), files=3)
FEATURES = {
    "words": tf.io.VarLenFeature(tf.int64),
    "label": tf.io.FixedLenFeature([], tf.int64),
}


def parse(record):
    features = tf.io.parse_single_example(record, FEATURES)
    words = tf.cast(tf.sparse.to_dense(features["words"]), tf.int32)
    return words, tf.cast(features["label"], tf.float32)


train = (
    tf.data.TFRecordDataset(FILES)
    .map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    .padded_batch(24, padded_shapes=([None], []), padding_values=(0, 0.0))
    .prefetch(1)
)

with tf.distribute.MirroredStrategy().scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Embedding(50, 8, mask_zero=True),
            tf.keras.layers.GlobalAveragePooling1D(),
            tf.keras.layers.Dense(1),
        ]
    )
    model.compile(tf.keras.optimizers.SGD(0.5), tf.keras.losses.BinaryCrossentropy(from_logits=True))

model.fit(train, epochs=3)
