"""Models with steps in TensorFlow's style train as on one device, under every strategy and without one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from tests.hosts_by_name import HOSTS_AND_LAYOUT
from tests.keras.comparing import CLASSES, FEATURES, LABELS, TOLERANCE, X, assert_same, made, worked


class Classifier(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden, self.norm = keras.layers.Dense(5, activation="tanh"), keras.layers.BatchNormalization()
        self.out = keras.layers.Dense(CLASSES, kernel_regularizer="l2", activity_regularizer="l1")

    def call(self, x, training=False):
        return self.out(self.norm(self.hidden(x), training=training))


class Own(Classifier):
    """It makes its steps itself, as a guide to TensorFlow has it."""

    def __init__(self):
        super().__init__()
        self.mean_loss = keras.metrics.Mean(name="loss")
        self.accuracy = keras.metrics.SparseCategoricalAccuracy(name="accuracy")

    @property
    def metrics(self):
        return [self.mean_loss, self.accuracy]

    def train_step(self, data):
        x, y = data

        def loss_fn():
            y_pred = self(x, training=True)
            return self.compute_loss(x, y, y_pred), y_pred

        (loss, y_pred), gradients = rx.value_and_grad(loss_fn, self.trainable_variables, has_aux=True)()
        self.optimizer.apply(gradients, self.trainable_variables)
        return self._logs(loss, y, y_pred)

    def test_step(self, data):
        x, y = data
        y_pred = self(x, training=False)
        return self._logs(self.compute_loss(x, y, y_pred), y, y_pred)

    def predict_step(self, data):
        x = data[0] if isinstance(data, tuple) else data
        return keras.ops.softmax(self(x, training=False))

    def _logs(self, loss, y, y_pred):
        self.mean_loss.update_state(loss, sample_weight=y.shape[0])
        self.accuracy.update_state(y, y_pred)
        return {metric.name: metric.result() for metric in self.metrics}


class Functional(Classifier):
    """The same with Keras's own steps."""

    def predict_step(self, state, data):
        outputs, others = super().predict_step(state, data)
        return keras.ops.softmax(outputs), others


def model_of(kind, **compiled):
    model = kind()
    model(np.zeros((1, FEATURES), np.float32))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    metrics = ["accuracy"] if kind is Functional else None
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, metrics=metrics, **compiled)
    return model


@pytest.fixture(scope="module")
def expected():
    return worked(made(None, lambda: model_of(Functional)), X, LABELS)


HOSTS = {
    **HOSTS_AND_LAYOUT,
    "one": lambda: rx.OneDeviceStrategy("cpu:0"),
    "central": lambda: rx.CentralStorageStrategy(["cpu:1", "cpu:2"], "cpu:0"),
}


@pytest.mark.parametrize("name", ["three", "sharded"])
def test_a_model_with_steps_of_its_own_trains_as_keras_does(name, expected):
    assert_same(worked(made(HOSTS[name](), lambda: model_of(Own)), X, LABELS), expected, TOLERANCE)


@pytest.mark.nightly
@pytest.mark.parametrize("name", HOSTS)
@pytest.mark.parametrize("settings", [{}, {"run_eagerly": True}, {"steps_per_execution": 2}], ids=str)
def test_under_every_strategy(name, settings, expected):
    assert_same(worked(made(HOSTS[name](), lambda: model_of(Own, **settings)), X, LABELS), expected, TOLERANCE)


@pytest.mark.nightly
@pytest.mark.parametrize("eagerly", [False, True])
def test_without_a_strategy(eagerly, mirrored, expected):
    with mirrored(2).scope():
        pass  # From now on replicax takes part in Keras's loops.
    model = made(None, lambda: model_of(Own, run_eagerly=eagerly))
    assert_same(worked(model, X, LABELS), expected, TOLERANCE)
    assert set(model.train_step((X, LABELS))) == {"loss", "accuracy"}  # It can still be called by itself.


def test_other_signatures_are_refused(mirrored):
    class Wrong(keras.Sequential):
        def train_step(self, state, data, extra):
            raise NotImplementedError

    with mirrored(2).scope():
        model = Wrong([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    with pytest.raises(rx.errors.ArgumentError, match=r"train_step\(self, data\)"):
        model.fit(np.ones((4, 2)), np.ones(4), verbose=0)


def test_losses_that_layers_add_count_in_custom_loops_too(mirrored):
    """`model.losses` has the penalties of activities, of this replica's rows."""
    two = mirrored(2)
    with two.scope():
        layer = keras.layers.Dense(1, kernel_initializer="ones", activity_regularizer=keras.regularizers.L2(1.0))
        layer.build((None, 1))

    def step(x):
        def loss():
            layer(x)
            return rx.compute_average_loss(sum(layer.losses)[None], global_batch_size=1)

        return rx.value_and_grad(loss, layer.trainable_variables)()

    (batch,) = two.distribute_dataset([np.arange(4, dtype=np.float32)[:, None]])
    loss, gradients = two.run(step, args=(batch,))
    # Keras divides a layer's penalty by the rows that it sees.
    expected = (0 + 1) / 2 + (4 + 9) / 2
    np.testing.assert_allclose(two.reduce("sum", loss), expected)
    np.testing.assert_allclose(gradients[0], [[2 * expected]])


class Uncalled(keras.Model):
    """Its step calls its parts; it has no `call`, and its batches are dicts."""

    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(5, activation="tanh")
        self.out = keras.layers.Dense(1)

    def loss_of(self, batch):
        return keras.ops.mean(keras.ops.square(self.out(self.hidden(batch["rows"])) - batch["targets"]))

    def train_step(self, data):
        loss, gradients = rx.value_and_grad(lambda: self.loss_of(data), self.trainable_variables)()
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"squares": loss}


class OtherCall(Uncalled):
    """It has one, which takes no such batch."""

    def call(self, x):
        return self.out(self.hidden(x))


class Rows(keras.utils.PyDataset):
    def __len__(self):
        return 3

    def __getitem__(self, i):
        rows = X[6 * i : 6 * i + 6]
        return {"rows": rows, "targets": np.sum(rows, axis=1, keepdims=True)}


@pytest.mark.daily(3)
@pytest.mark.parametrize("name", ["three", "sharded", "central"])
@pytest.mark.parametrize("kind", [Uncalled, OtherCall])
def test_a_step_may_do_without_a_call_of_the_model(name, kind):
    with HOSTS[name]().scope():
        keras.utils.set_random_seed(0)
        model = kind()
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss="mse")  # The loss is not used.
    weights = []

    def note(*_):
        weights.extend(model.get_weights())

    begin = keras.callbacks.LambdaCallback(on_train_begin=note)
    history = [model.fit(Rows(), shuffle=False, verbose=0, callbacks=[begin]).history["squares"][-1] for _ in range(2)]

    first = [jnp.asarray(value) for value in weights[:4]]
    expected, momenta, losses = first, [jnp.zeros_like(value) for value in first], []

    def loss_of(values, batch):
        kernel, bias, out, shift = values
        found = jnp.tanh(batch["rows"] @ kernel + bias) @ out + shift
        return jnp.mean(jnp.square(found - batch["targets"]))

    for _ in range(2):
        for i in range(3):
            loss, gradients = jax.value_and_grad(loss_of)(expected, Rows()[i])
            momenta = [0.9 * m - 0.1 * g for m, g in zip(momenta, gradients, strict=True)]
            expected = [value + m for value, m in zip(expected, momenta, strict=True)]
        losses.append(float(loss))
    np.testing.assert_allclose(history, losses, rtol=1e-5)
    for ours, value in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_allclose(ours, value, rtol=1e-5, atol=1e-6)
