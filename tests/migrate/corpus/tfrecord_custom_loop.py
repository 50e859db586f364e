# Copyright 2026 The replicax authors
# SPDX-License-Identifier: Apache-2.0
# Written for this corpus: a custom loop over a distributed dataset

import small_data
import tensorflow as tf

FILENAMES = small_data.tfrecords("images", small_data.image_rows(), files=2)
GLOBAL_BATCH_SIZE = 40
EPOCHS = 3

strategy = tf.distribute.MirroredStrategy()


def read_tfrecord(record):
    features = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "height": tf.io.FixedLenFeature([], tf.int64),
        "width": tf.io.FixedLenFeature([], tf.int64),
        "label": tf.io.FixedLenFeature([], tf.int64),
    }
    parsed = tf.io.parse_single_example(record, features)
    pixels = tf.io.decode_raw(parsed["image"], tf.uint8)
    pixels = tf.cast(tf.reshape(pixels, [784]), tf.float32)
    return pixels / 127.5 - 1.0, tf.cast(parsed["label"], tf.int32)


dataset = tf.data.TFRecordDataset(FILENAMES, num_parallel_reads=tf.data.AUTOTUNE)
dataset = dataset.map(read_tfrecord, num_parallel_calls=tf.data.AUTOTUNE)
dataset = dataset.shuffle(1000, seed=1)
dataset = dataset.batch(GLOBAL_BATCH_SIZE)
dataset = dataset.prefetch(tf.data.AUTOTUNE)
dist_dataset = strategy.experimental_distribute_dataset(dataset)

with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input([784]),
            tf.keras.layers.Dense(24, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    optimizer = tf.keras.optimizers.SGD(0.05)
    loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


def train_step(inputs):
    images, labels = inputs
    with tf.GradientTape() as tape:
        logits = model(images, training=True)
        per_example_loss = loss_object(labels, logits)
        loss = tf.nn.compute_average_loss(per_example_loss, global_batch_size=GLOBAL_BATCH_SIZE)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


@tf.function
def distributed_train_step(inputs):
    per_replica_losses = strategy.run(train_step, args=(inputs,))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica_losses, axis=None)


for epoch in range(EPOCHS):
    total, batches = 0.0, 0
    for inputs in dist_dataset:
        total += float(distributed_train_step(inputs))
        batches += 1
    print(f"Epoch {epoch}, loss {total / batches}")
