"""An estimator with roles that train, serve and evaluate: a small network learns digits.

    python examples/estimator_mnist.py
    replicax run --workers 2 --evaluator examples/estimator_mnist.py --data-dir DIR    # MNIST's four .gz files
    replicax run --ps 1 --workers 2 examples/estimator_mnist.py --data-dir DIR

No line names a strategy. Alone the script trains and evaluates in turn. Two workers train in step, and an evaluator
beside them evaluates each checkpoint. With a parameter server the workers train asynchronously. On MNIST the test
accuracies are 0.980 (alone, and with two workers) and 0.975 (with a server).
"""

from __future__ import annotations

import argparse
import gzip
import os
import tempfile
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np
from sklearn.datasets import load_digits

import replicax as rx

BATCH = 200


def digits():
    """Returns images and labels to train on, and images and labels to test on."""
    images, labels = load_digits(return_X_y=True)
    shuffled = np.random.default_rng(0).permutation(len(labels))
    images, labels = (images[shuffled] / 16).astype("float32"), labels[shuffled].astype("int32")
    return images[:1400], labels[:1400], images[1400:], labels[1400:]


def mnist(folder):
    def read(name, header):  # after a header of so many bytes come the values, one byte each
        return np.frombuffer(gzip.decompress((folder / name).read_bytes()), np.uint8, offset=header)

    def images(part):
        return read(f"{part}-images-idx3-ubyte.gz", 16).reshape(-1, 784).astype("float32") / 255

    def labels(part):
        return read(f"{part}-labels-idx1-ubyte.gz", 8).astype("int32")

    return images("train"), labels("train"), images("t10k"), labels("t10k")


def model_fn(features, labels, mode, params):
    model = keras.Sequential([keras.layers.Dense(params["units"], "relu"), keras.layers.Dense(10)], name="classifier")
    logits = model(features)
    if mode == rx.estimator.ModeKeys.PREDICT:
        return rx.estimator.EstimatorSpec(mode, predictions={"digit": keras.ops.argmax(logits, 1)})
    loss = keras.ops.mean(keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True))
    accuracy = keras.metrics.SparseCategoricalAccuracy(name="accuracy")
    accuracy.update_state(labels, logits)
    return rx.estimator.EstimatorSpec(
        mode,
        loss=loss,
        eval_metric_ops={"accuracy": accuracy},
        optimizer=keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(1.5e-3, params["steps"])),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, help="folder with MNIST; by default small digits of scikit-learn")
    parser.add_argument("--model-dir", help="one folder for all processes; by default a temporary one")
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument("--save-steps", type=int, default=600)
    args = parser.parse_args()
    train_x, train_y, test_x, test_y = mnist(args.data_dir) if args.data_dir else digits()

    def train_data():  # global batches without end
        rng = np.random.default_rng(0)
        while True:
            rows = rng.choice(len(train_y), BATCH, replace=False)
            yield train_x[rows], train_y[rows]

    def test_data():
        for rows in range(0, len(test_y), BATCH):
            yield test_x[rows : rows + BATCH], test_y[rows : rows + BATCH]

    run = os.environ.get("REPLICAX_LAUNCHER_PID", os.getpid())  # the same in all processes of `replicax run`
    estimator = rx.estimator.Estimator(
        model_fn,
        model_dir=args.model_dir or os.path.join(tempfile.gettempdir(), f"replicax-estimator-{run}"),
        config=rx.estimator.RunConfig(seed=0, save_checkpoints_steps=args.save_steps),
        params={"units": 256, "steps": args.steps},
    )
    exporter = rx.estimator.FinalExporter("digits", rx.TensorSpec((None, train_x.shape[1]), "float32"))
    metrics, exports = rx.estimator.train_and_evaluate(
        estimator,
        rx.estimator.TrainSpec(train_data, max_steps=args.steps),
        rx.estimator.EvalSpec(test_data, steps=None, exporters=exporter, start_delay_secs=0, throttle_secs=0),
    )
    if metrics is None:
        return  # This process has trained: the evaluator tells the rest.

    digit = rx.load_export(exports[0])(test_x[:1])["digit"]
    print(f"The export takes the first test image for a {digit[0]}; it is a {test_y[0]}.")
    evaluations = rx.estimator.read_eval_metrics(estimator.eval_dir())
    print(f"RESULT estimator_accuracy {metrics['accuracy']:.4f}")
    print(f"RESULT estimator_evaluations {len(evaluations)}")
    print(f"RESULT estimator_checkpoints {-(-args.steps // args.save_steps)}")


if __name__ == "__main__":
    main()
