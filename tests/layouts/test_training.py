"""Training under each layout, on each mesh: the numbers of one device."""

import functools

import keras
import numpy as np
import pytest

import replicax as rx

LAYOUTS = ["auto", "fsdp", "tensor", {r"embeddings|up/kernel": (None, "model"), r"query/kernel": (None, "model", None)}]
MESHES = [(8,), (1, 8), (2, 4), (4, 2)]
ALWAYS = [("auto", (2, 4)), ("fsdp", (8,)), ("tensor", (4, 2))]


def case(layout, mesh):
    name = f"{layout if isinstance(layout, str) else 'patterns'}-{'x'.join(map(str, mesh))}"
    return pytest.param(layout, mesh, id=name, marks=[] if (layout, mesh) in ALWAYS else [pytest.mark.nightly])


CASES = [case(layout, mesh) for layout in LAYOUTS for mesh in MESHES]
RNG = np.random.default_rng(0)
TOKENS = RNG.integers(0, 40, (42, 6))  # Batches of 16, 16 and 10 rows: the last one divides by 2 only.
LABELS = RNG.integers(0, 3, (42,))
BATCH = 16


def transformer():
    keras.utils.set_random_seed(1)
    tokens = keras.Input((6,), dtype="int32")
    x = keras.layers.Embedding(40, 16)(tokens)
    # Without biases: the gradient of a key's is zero but for rounding, and no relative difference means anything there.
    attended = keras.layers.MultiHeadAttention(8, 4, use_bias=False, name="attention")(x, x)
    x = keras.layers.LayerNormalization()(x + attended)
    hidden = keras.layers.Dense(32, "gelu", name="up")(x)
    x = x + keras.layers.Dense(16, name="down")(hidden)
    return keras.Model(tokens, keras.layers.Dense(3, name="head")(x[:, 0]))


def fitted(strategy):
    with strategy.scope():
        model = transformer()
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), keras.losses.SparseCategoricalCrossentropy(True))
    history = model.fit(TOKENS, LABELS, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    return history.history["loss"], model.get_weights()


def looped(strategy):
    with strategy.scope():
        model, optimizer = transformer(), keras.optimizers.SGD(0.1, momentum=0.9)
    losses = keras.losses.SparseCategoricalCrossentropy(True, reduction="none")

    def train_step(x, y):
        def loss_fn():
            return rx.compute_average_loss(losses(y, model(x)), global_batch_size=rows(x))

        loss, gradients = rx.value_and_grad(loss_fn, model.trainable_variables)()
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    def rows(x):
        return x.shape[0] * rx.get_replica_context().num_replicas_in_sync

    step = rx.function(lambda x, y: strategy.reduce("sum", strategy.run(train_step, args=(x, y)), axis=None))
    batches = [(TOKENS[i : i + BATCH], LABELS[i : i + BATCH]) for i in range(0, len(TOKENS), BATCH)] * 2
    return [float(step(*batch)) for batch in strategy.distribute_dataset(batches)], model.get_weights()


@functools.cache
def on_one_device(train):
    return train(rx.OneDeviceStrategy("cpu:0"))


def names(mesh):
    return {"batch": mesh[0]} if len(mesh) == 1 else {"batch": mesh[0], "model": mesh[1]}


@pytest.mark.daily(1)
@pytest.mark.filterwarnings("ignore:LayoutStrategy.* leaves .*large variables? whole")
@pytest.mark.parametrize("train", [fitted, looped])
@pytest.mark.parametrize(("layout", "mesh"), CASES)
def test_training_has_the_numbers_of_one_device(layout, mesh, train):
    if isinstance(layout, dict) and len(mesh) == 1:
        layout = {pattern: [axis and "batch" for axis in axes] for pattern, axes in layout.items()}
    losses, weights = train(rx.LayoutStrategy(mesh_shape=names(mesh), layout=layout, min_size=32))
    expected_losses, expected = on_one_device(train)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-6)
    for value, wanted in zip(weights, expected, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-6, atol=1e-6 * np.abs(wanted).max())
