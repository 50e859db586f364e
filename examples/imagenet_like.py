"""A residual network learns from JPEGs in TFRecords, on two workers with four devices each; it is killed, and goes on.

    python examples/imagenet_like.py

It makes 1,000 images of ten classes, cut in eight TFRecord files as ImageNet is in a thousand, and starts the training
three times: on one device, from the beginning to the end; on two workers, which are killed in the middle of the second
epoch; and on two workers again, from the last checkpoint. Both trainings see the same images in the same order, with
the same random crops and flips, so the losses are those of one device. TensorFlow is not needed.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import keras
import numpy as np
from PIL import Image

import replicax as rx

jax.config.update("jax_default_matmul_precision", "highest")  # no bfloat16 in matrix products, on any device

IMAGES, CLASSES, SIZE, BATCH, EPOCHS = 1000, 10, 32, 40, 2
FEATURES = {"image": rx.data.FixedLenFeature([], "string"), "label": rx.data.FixedLenFeature([], "int64")}
SAVE_EVERY, KILL_AT = 5, 38  # steps


def write_files(folder):
    """Makes JPEGs, each a noisy pattern of its class."""
    draw = np.random.default_rng(0)
    patterns = draw.normal(size=(CLASSES, 5, 5, 3))
    for part in range(8):
        rows = []
        for _ in range(IMAGES // 8):
            label = int(draw.integers(CLASSES))
            pixels = 128 + 40 * (patterns[label] + 0.7 * draw.normal(size=(5, 5, 3)))
            image = Image.fromarray(pixels.clip(0, 255).astype("uint8")).resize((40, 40), Image.Resampling.BICUBIC)
            image.save(file := io.BytesIO(), "jpeg", quality=90)
            rows.append({"image": file.getvalue(), "label": label})
        rx.data.write_tfrecord(f"{folder}/train-{part:05}-of-00008", rows)


def decode(row):
    return rx.data.decode_image(row["image"]), np.int32(row["label"])


def augment(row, draw):
    image, label = row
    top, left = draw.integers(40 - SIZE, size=2)
    image = image[top : top + SIZE, left : left + SIZE]
    return image[:, ::-1] if draw.random() < 0.5 else image, label


def make_model():
    """Returns a small residual network, whose normalization looks at one image at a time."""
    x = inputs = keras.Input((SIZE, SIZE, 3))
    x = keras.layers.Rescaling(1 / 64, offset=-2)(x)
    x = keras.layers.Conv2D(16, 3, padding="same", use_bias=False)(x)
    for filters, stride in ((16, 1), (32, 2), (64, 2)):
        y = keras.layers.GroupNormalization(8)(x)
        y = keras.layers.Activation("silu")(y)
        shortcut = keras.layers.Conv2D(filters, 1, strides=stride, use_bias=False)(y)
        y = keras.layers.Conv2D(filters, 3, strides=stride, padding="same", use_bias=False)(y)
        y = keras.layers.GroupNormalization(8)(y)
        y = keras.layers.Activation("silu")(y)
        x = keras.layers.Conv2D(filters, 3, padding="same", use_bias=False)(y) + shortcut
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, keras.layers.Dense(CLASSES)(x))


def train(strategy, folder, name, kill):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = make_model()
        optimizer = keras.optimizers.SGD(0.02, momentum=0.9)
        optimizer.build(model.trainable_variables)
    per_example = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)

    def train_step(batch):  # one replica's view
        images, labels = batch

        def loss_fn():
            logits = model(images, training=True)
            return rx.compute_average_loss(per_example(labels, logits), global_batch_size=BATCH)

        loss, gradients = rx.value_and_grad(loss_fn, model.trainable_variables)()
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @rx.function
    def step(batch):
        return strategy.reduce("sum", strategy.run(train_step, args=(batch,)), axis=None)

    rows = rx.data.read_tfrecord(f"{folder}/train-*", FEATURES).map(decode).random_map(augment, seed=7)
    # Every worker reads all records, and decodes its own: so the order does not depend on the number of workers.
    options = rx.InputOptions(auto_shard_policy="data")
    dataset = strategy.distribute_dataset(rows.shuffle(seed=1, buffer=400).batch(BATCH), options)
    checkpoint = rx.Checkpoint(model=model, optimizer=optimizer, data=dataset)
    manager = rx.CheckpointManager(checkpoint, f"{folder}/{name}", max_to_keep=1)
    manager.restore_or_initialize()
    losses = {}
    log = Path(folder, f"{name}-{'first' if kill else 'last'}.json")
    for _ in range(dataset.get_state()["pass"], EPOCHS):
        for batch in dataset:
            loss = float(step(batch))
            number = int(optimizer.iterations)
            losses[number] = loss
            if number % SAVE_EVERY == 0:
                manager.save()
                manager.wait_until_finished()
                log.write_text(json.dumps(losses))
            if number == kill:
                os.kill(os.getpid(), signal.SIGKILL)
    log.write_text(json.dumps(losses))


def start(folder, name, kill=0, launcher=()):
    environment = {**os.environ, "XLA_FLAGS": os.environ.get("XLA_FLAGS", "")}
    script = [__file__, "--train", name, "--folder", folder, "--kill", str(kill)]
    command = [sys.executable, *(("-m", "replicax", "run", *launcher) if launcher else ()), *script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    print(f"{name}: {'killed' if kill else 'ended'} with exit code {done.returncode}")
    if (done.returncode == 0) is (kill > 0):
        raise SystemExit(done.stdout + done.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--kill", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        alone = args.train == "alone"
        strategy = rx.OneDeviceStrategy(jax.local_devices()[0]) if alone else rx.MultiWorkerMirroredStrategy()
        train(strategy, args.folder, args.train, args.kill)
        return
    with tempfile.TemporaryDirectory() as folder:
        write_files(folder)
        start(folder, "alone")
        launcher = ("--workers", "2", "--devices-per-worker", "4")
        start(folder, "workers", kill=KILL_AT, launcher=launcher)
        start(folder, "workers", launcher=launcher)
        alone = json.loads(Path(folder, "alone-last.json").read_text())
        first, last = (json.loads(Path(folder, f"workers-{part}.json").read_text()) for part in ("first", "last"))
        found = {**first, **last}
        assert list(found) == list(alone), (list(found), list(alone))
        difference = max(abs(found[number] - loss) for number, loss in alone.items())
        print(f"{len(first)} steps before the kill, {len(last)} after it")
        print(f"loss {alone['1']:.3f} at first, {np.mean([*alone.values()][-5:]):.3f} in the last five steps")
        print(f"RESULT imagenet_like_loss_difference {difference:.1e}")


if __name__ == "__main__":
    main()
