"""Data-parallel training with DTensor, without Keras: layers, Adam and batches over a mesh, all hand-written.

    python examples/dtensor_mlp.py
    python examples/dtensor_mlp.py --data mnist --data-dir DIR    # DIR holds MNIST's four .gz files
    python examples/dtensor_mlp.py --mesh batch=4,model=2         # the wide layers' weights are cut, too

It does what TensorFlow's tutorial "Distributed training with Core APIs and DTensor" does, with an Adam whose step count
advances. For each seed of the initialiser it trains twice, on all devices and on one, and compares the steps' losses.
"""

from __future__ import annotations

import argparse
import gzip
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

import replicax as rx
from replicax.dtensor import (
    UNSHARDED,
    Checkpoint,
    DVariable,
    Layout,
    call_with_layout,
    create_mesh,
    pack,
    stateless_uniform,
)

ROWS = 5000  # the first so many images are enough to see it learn
# The tutorial's text wants 500 units in the second hidden layer; its code sets them, and then sets them to 10.
HIDDEN = {"seed": (700, 10), "text": (700, 500)}
# What the tutorial printed after each epoch, for its code's sizes and with an Adam whose step count stays 1.
PUBLISHED_TEST_ACCURACY = (0.504, 0.782, 0.869)
SEEDS = [(22, 23), (0, 1), (1, 2)]  # the tutorial's, which it takes for every layer, and others of that kind
TOLERANCE = 1e-5  # for losses on several devices and on one


# The model. All that tells it from one for a single device is that its variables have a layout.


class DenseLayer:
    """A dense layer whose weights are drawn from Xavier's uniform distribution, each device making its own part."""

    def __init__(self, inputs, outputs, weight_layout, seed, activation=lambda z: z):
        limit = (6 / (inputs + outputs)) ** 0.5
        shape, bias_layout = (inputs, outputs), weight_layout.delete([0])
        self.w = DVariable(stateless_uniform(shape, seed, -limit, limit, layout=weight_layout), name="w")
        self.b = DVariable(call_with_layout(jnp.zeros, bias_layout, (outputs,), jnp.float32), name="b")
        self.activation = activation

    def __call__(self, x):
        return self.activation(multiply(x, self.w.value) + self.b)


def multiply(x, w):
    """Returns `x @ w` in its own dtype, its sums (and those of the gradients) made in float64 where that is on.

    Several devices add rows up in another order than one does. In float32 that decides now and then on which side of
    its kink a ReLU is whose input is nearly zero, and from there on two trainings drift apart.
    """
    sums = jnp.result_type(jnp.float64)  # float32 with --sums float32
    return (x.astype(sums) @ w.astype(sums)).astype(x.dtype)


class MLP:
    """Dense layers one after another."""

    def __init__(self, layers):
        self.layers = layers

    @property
    def trainable_variables(self):
        return [variable for layer in self.layers for variable in (layer.w, layer.b)]

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def make_model(mesh, pixels, hidden, seed):
    first, second = hidden
    # Without a mesh dimension "model" every device holds all weights. With one, the columns of the first layer and the
    # rows of the second are cut by it: then a device computes some of the hidden units only.
    model = "model" if "model" in mesh else UNSHARDED
    return MLP(
        [
            DenseLayer(pixels, first, Layout([UNSHARDED, model], mesh), seed, jax.nn.relu),
            DenseLayer(first, second, Layout([model, UNSHARDED], mesh), seed, jax.nn.relu),
            DenseLayer(second, 10, Layout([UNSHARDED, UNSHARDED], mesh), seed),
        ]
    )


def cross_entropy_loss(logits, labels):
    log_probabilities = jax.nn.log_softmax(logits)
    return -jnp.mean(jnp.take_along_axis(log_probabilities, labels[:, None], axis=1))


def accuracy(logits, labels):
    return jnp.mean(logits.argmax(axis=1) == labels)


class Adam:
    """The optimizer of Kingma and Ba (2015). Its moments are laid out like the variables that they belong to."""

    def __init__(self, variables, learning_rate=1e-3, beta_1=0.9, beta_2=0.999, epsilon=1e-7):
        self.variables = variables
        self.learning_rate, self.beta_1, self.beta_2, self.epsilon = learning_rate, beta_1, beta_2, epsilon
        # A variable, for a number of Python would be fixed in the compiled step.
        self.steps = DVariable(jnp.float32(0), layout=Layout([], variables[0].layout.mesh), name="steps")
        self.means = [self._zeros_like(variable) for variable in variables]
        self.squares = [self._zeros_like(variable) for variable in variables]

    @staticmethod
    def _zeros_like(variable):
        zeros = call_with_layout(jnp.zeros, variable.layout, variable.shape, jnp.float32)
        return DVariable(zeros, name=f"moment of {variable.name}")

    def apply_gradients(self, gradients):
        t = self.steps.assign_add(1)
        for gradient, variable, mean, square in zip(gradients, self.variables, self.means, self.squares, strict=True):
            m = mean.assign(self.beta_1 * mean + (1 - self.beta_1) * gradient)
            s = square.assign(self.beta_2 * square + (1 - self.beta_2) * jnp.square(gradient))
            # Both begin at zero; dividing makes up for that.
            m, s = m / (1 - self.beta_1**t), s / (1 - self.beta_2**t)
            variable.assign_sub(self.learning_rate * m / (jnp.sqrt(s) + self.epsilon))


# The batches. Each device is sent its own rows and nothing else.


def repack_local_tensor(x, layout):
    """Returns an array of this process as a DTensor, for a mesh whose devices all belong to this process."""
    lengths = layout.local_shape(x.shape)  # of each dimension, divided by layout.num_shards

    def component(location):
        starts = [location.get(dim, 0) * length for dim, length in zip(layout.sharding_specs, lengths, strict=True)]
        return x[tuple(slice(start, start + length) for start, length in zip(starts, lengths, strict=True))]

    return pack([component(location) for location in layout.mesh.local_device_locations()], layout)


def repack_batch(x, y, mesh):
    # Rows that do not divide (the last batch may have any number of them) go to every device.
    divides = "batch" in mesh and len(x) % mesh.dim_size("batch") == 0
    rows = "batch" if divides else UNSHARDED
    return repack_local_tensor(x, Layout([rows, UNSHARDED], mesh)), repack_local_tensor(y, Layout([rows], mesh))


# Training. The steps are written for the global batch; XLA splits the work as the layouts say.


@rx.function
def train_step(model, x, y, loss, metric, optimizer):
    def loss_fn():
        logits = model(x)
        return loss(logits, y), metric(logits, y)

    (batch_loss, batch_metric), gradients = rx.value_and_grad(loss_fn, model.trainable_variables, has_aux=True)()
    optimizer.apply_gradients(gradients)
    return batch_loss, batch_metric


@rx.function
def test_step(model, x, y, loss, metric):
    logits = model(x)
    return loss(logits, y), metric(logits, y)


class Training:
    """A model and its optimizer over a mesh, and how the training went."""

    def __init__(self, mesh, pixels, hidden, seed):
        self.mesh, self.seed = mesh, seed
        self.model = make_model(mesh, pixels, hidden, seed)
        self.optimizer = Adam(self.model.trainable_variables)
        self.train, self.test = [], []  # a pair of loss and accuracy for each epoch: means over its batches
        self.step_losses = []  # of all training steps
        self.seconds = 0.0

    def run(self, data, epochs, batch_size):
        begin = time.perf_counter()
        train_rows, test_rows = data
        for _ in range(epochs):
            trained = [
                train_step(self.model, x, y, cross_entropy_loss, accuracy, self.optimizer)
                for x, y in self.batches(*train_rows, batch_size)
            ]
            tested = [
                test_step(self.model, x, y, cross_entropy_loss, accuracy)
                for x, y in self.batches(*test_rows, batch_size)
            ]
            self.train.append(np.mean(trained, axis=0))
            self.test.append(np.mean(tested, axis=0))
            self.step_losses += [float(loss) for loss, _ in trained]
        self.seconds = time.perf_counter() - begin

    def batches(self, images, labels, size):
        for start in range(0, len(images), size):
            yield repack_batch(images[start : start + size], labels[start : start + size], self.mesh)


# What is made of it: lines, figures and a checkpoint.


def print_comparison(training, alone):
    """Prints the epochs of a training, and returns by how much its losses differ from those on one device."""
    print(f"initialiser's seed {training.seed}, {training.seconds:.1f} s; on one device {alone.seconds:.1f} s")
    for epoch, ((loss, correct), (test_loss, test_correct)) in enumerate(
        zip(training.train, training.test, strict=True)
    ):
        print(f"  epoch {epoch}: training {loss:.3f}, accuracy {correct:.3f}; ", end="")
        print(f"testing {test_loss:.3f}, accuracy {test_correct:.3f}")
    differences = np.abs(np.subtract(training.step_losses, alone.step_losses))
    print(
        f"  the losses of {len(differences)} steps differ from those on one device by {differences.max():.1e} at most"
    )
    if differences.max() > TOLERANCE:
        first = np.argmax(differences > TOLERANCE)
        print(f"  (before step {first} by less than {TOLERANCE:.0e}; once rounding switches a ReLU, trainings drift")
        print("  apart, on one device too if its rows come in another order; see --sums)")
    return differences.max()


def print_published(trainings):
    print(f"the tutorial, whose Adam counts no steps, printed the test accuracies {PUBLISHED_TEST_ACCURACY};")
    print("the largest difference from them is")
    for training in trainings:
        found = [correct for _, correct in training.test]
        differences = np.abs(np.subtract(found, PUBLISHED_TEST_ACCURACY[: len(found)]))
        print(f"  {differences.max():.3f} with seed {training.seed}, in epoch {differences.argmax()}")


def plot_metrics(training, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for column, metric in enumerate(("loss", "accuracy")):
        figure = Figure(figsize=(7, 4.5), layout="constrained")
        axes = figure.subplots()
        for phase, means in (("training", training.train), ("testing", training.test)):
            axes.plot([mean[column] for mean in means], "o-", label=phase)
        axes.set(title=f"{metric} by epoch", xlabel="epoch", ylabel=metric, xticks=range(len(training.train)))
        axes.legend(frameon=False)
        figure.savefig(folder / f"{metric}.png", dpi=150)
        print(f"wrote {folder / f'{metric}.png'}")


def save_and_restore(folder, training, fresh, rows):
    """Writes the state of a training, and reads it back on another mesh, where the model must predict the same."""
    path = Checkpoint(training.mesh, model=training.model, optimizer=training.optimizer).write(folder)
    Checkpoint(fresh.mesh, model=fresh.model, optimizer=fresh.optimizer).restore(path)
    losses = []
    for each in (training, fresh):
        x, y = repack_batch(*(array[:128] for array in rows), each.mesh)
        losses.append(float(test_step(each.model, x, y, cross_entropy_loss, accuracy)[0]))
    print(f"wrote {path}: after {int(fresh.optimizer.steps)} steps a testing loss of {losses[0]:.6f}")
    print(f"  restored on {fresh.mesh!r}: {losses[1]:.6f}")


# The data.


def digits():
    """Returns images and labels to train on, and images and labels to test on."""
    images, labels = load_digits(return_X_y=True)
    shuffled = np.random.default_rng(0).permutation(len(labels))
    train, test = np.split(shuffled, [4 * len(labels) // 5])
    return (images[train] / 16, labels[train]), (images[test] / 16, labels[test])


def mnist(folder):
    def read(name, header):  # after a header of so many bytes come the values, one byte each
        return np.frombuffer(gzip.decompress((folder / name).read_bytes()), np.uint8, offset=header)

    def rows(part):
        images = read(f"{part}-images-idx3-ubyte.gz", 16).reshape(-1, 784) / 255
        return images[:ROWS], read(f"{part}-labels-idx1-ubyte.gz", 8)[:ROWS]

    return rows("train"), rows("t10k")


def load(args):
    both = digits() if args.data == "digits" else mnist(args.data_dir)
    return [(images.astype("float32"), labels.astype("int32")) for images, labels in both]


def pair(text):
    first, second = text.split(",")
    return int(first), int(second)


def mesh_dims(text):
    return [(name, int(size)) for name, size in (part.split("=") for part in text.split(","))]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", choices=["digits", "mnist"], default="digits")
    parser.add_argument("--data-dir", type=Path, default=Path("."))
    parser.add_argument("--sizes", choices=HIDDEN, default="text", help="hidden layers as the tutorial's code or text")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument(
        "--devices", type=int, default=8, help="virtual devices; real GPUs are used where there are some"
    )
    parser.add_argument("--mesh", type=mesh_dims, default=[("batch", -1)], help="such as batch=8 or batch=4,model=2")
    parser.add_argument("--seeds", type=pair, nargs="+", default=SEEDS, help="of the initialiser, such as 22,23 0,1")
    parser.add_argument("--sums", choices=["float32", "float64"], default="float64", help="of the matrix products")
    parser.add_argument("--plots", type=Path, default=Path("runs/dtensor_mlp"), help="folder for the two figures")
    parser.add_argument("--save", type=Path, help="folder, not there yet, for a checkpoint of the best training")
    return parser.parse_args()


def main():
    args = parse_arguments()
    rx.config.set_virtual_devices(args.devices)  # only to try it without accelerators
    jax.config.update("jax_enable_x64", args.sums == "float64")
    data = load(args)
    mesh = create_mesh(args.mesh)
    one_device = create_mesh([(name, 1) for name in mesh.dim_names], devices=mesh.global_devices()[:1])
    pixels, hidden = data[0][0].shape[1], HIDDEN[args.sizes]
    sizes = "-".join(map(str, (pixels, *hidden, 10)))
    print(f"{args.data}: {len(data[0][0])} rows to train on, {len(data[1][0])} to test; {sizes} on {mesh!r}")

    trainings = [Training(mesh, pixels, hidden, seed) for seed in args.seeds]
    differences = []
    for training in trainings:
        training.run(data, args.epochs, args.batch_size)
        alone = Training(one_device, pixels, hidden, training.seed)
        alone.run(data, args.epochs, args.batch_size)
        differences.append(print_comparison(training, alone))
    best = max(trainings, key=lambda training: training.test[-1][1])
    print(f"the best seed is {best.seed}")
    if args.data == "mnist" and args.sizes == "seed":
        print_published(trainings)
    plot_metrics(best, args.plots)
    if args.save:
        save_and_restore(args.save, best, Training(one_device, pixels, hidden, best.seed), data[1])
    print(f"RESULT dtensor_test_accuracy {best.test[-1][1]:.3f}")
    print(f"RESULT dtensor_max_loss_difference {max(differences):.1e}")


if __name__ == "__main__":
    main()
