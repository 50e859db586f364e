# Copyright 2026 The replicax authors
# SPDX-License-Identifier: Apache-2.0
# Written for this corpus: an endless dataset, of which epochs are counted in steps

import small_data
import tensorflow as tf

small_data.tfrecords("steps", small_data.image_rows(320), files=8)
BATCH_SIZE = 64
STEPS_PER_EPOCH = 320 // BATCH_SIZE


def _parse_function(proto):
    keys_to_features = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
    }
    parsed_features = tf.io.parse_single_example(proto, keys_to_features)
    parsed_features["image"] = tf.io.decode_raw(parsed_features["image"], tf.uint8)
    image = tf.cast(parsed_features["image"], tf.float32) * (1.0 / 255.0)
    return tf.reshape(image, [784]), tf.cast(parsed_features["label"], tf.int32)


def create_dataset(filepath):
    dataset = tf.data.Dataset.list_files(filepath)
    dataset = dataset.interleave(lambda filename: tf.data.TFRecordDataset(filename), cycle_length=8, block_length=4)
    dataset = dataset.map(_parse_function, num_parallel_calls=8)
    dataset = dataset.shuffle(512)
    dataset = dataset.batch(BATCH_SIZE, drop_remainder=True)
    dataset = dataset.repeat()
    return dataset.prefetch(buffer_size=2)


strategy = tf.distribute.MirroredStrategy()
dataset = strategy.experimental_distribute_dataset(create_dataset("steps/part-*"))
iterator = iter(dataset)

with strategy.scope():
    kernel = tf.Variable(tf.zeros([784, 10]))
    bias = tf.Variable(tf.zeros([10]))


@tf.function
def train_step(batch):
    def step_fn(inputs):
        images, labels = inputs
        with tf.GradientTape() as tape:
            logits = tf.matmul(images, kernel) + bias
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
            loss = tf.reduce_sum(losses) / BATCH_SIZE
        d_kernel, d_bias = tape.gradient(loss, [kernel, bias])
        context = tf.distribute.get_replica_context()
        d_kernel, d_bias = context.all_reduce(tf.distribute.ReduceOp.SUM, [d_kernel, d_bias])
        kernel.assign_sub(0.1 * d_kernel)
        bias.assign_sub(0.1 * d_bias)
        return loss

    losses = strategy.run(step_fn, args=(batch,))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)


for epoch in range(4):
    for _ in range(STEPS_PER_EPOCH):
        loss = train_step(next(iterator))
    print("epoch", epoch, float(loss))
