"""A script whose Keras models have classes and functions of its own; `python travelling.py FILE` sends them there.

Run in a process of its own: the reading one has neither this file nor the module beside it.
"""

import sys

import keras
import numpy as np

from replicax.compat.keras import build_for

if __name__ == "__main__":
    import beside
else:  # The test reads the names of the models.
    from tests.keras import beside

X = np.random.default_rng(0).normal(size=(12, 3)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
FACTOR = 0.5


class Scale(keras.layers.Layer):
    """A layer with only `build` and `call`."""

    def build(self, shape):
        self.g = self.add_weight(shape=(shape[-1],), initializer="ones", name="g")

    def call(self, x):
        return x * self.g * FACTOR


@keras.saving.register_keras_serializable()
class Registered(Scale):
    def __init__(self, by=2.0, **kwargs):
        super().__init__(**kwargs)
        self.by = by

    def call(self, x):
        return super().call(x) * self.by

    def get_config(self):
        return {**super().get_config(), "by": self.by}


class Block(keras.Model):
    """A model of its own, with another in it."""

    def __init__(self, units, activation, *, rate=0.0):
        super().__init__()
        self.inner = keras.Sequential([keras.layers.Dense(units, activation=activation), Scale()])
        self.rate = rate
        self.out = keras.layers.Dense(1)

    def call(self, x):
        return self.out(self.inner(x)) * self.rate


class Huber(keras.losses.Loss):
    """A loss whose configuration does not tell its argument."""

    def __init__(self, delta, name="huber"):
        super().__init__(name=name)
        self.delta = delta

    def call(self, y, p):
        return keras.ops.mean(keras.ops.minimum((y - p) ** 2, self.delta), axis=-1)


class Largest(keras.metrics.Metric):
    def __init__(self, name="largest", **kwargs):
        super().__init__(name=name, **kwargs)
        self.value = self.add_weight(name="value", initializer="zeros")

    def update_state(self, y, p, sample_weight=None):
        self.value.assign(keras.ops.maximum(self.value, keras.ops.max(p)))

    def result(self):
        return self.value * 2.0


class Slow(keras.optimizers.SGD):
    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient * FACTOR, variable, learning_rate)


class Decay(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule without a configuration."""

    def __init__(self, first):
        self.first = first

    def __call__(self, step):
        return self.first / (1.0 + keras.ops.cast(step, "float32"))


class Constant(keras.initializers.Initializer):
    def __init__(self, value):
        self.value = value

    def __call__(self, shape, dtype=None):
        return keras.ops.full(shape, self.value, dtype)


class Squares(keras.regularizers.Regularizer):
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x):
        return self.factor * keras.ops.sum(x * x)


class Seen(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.losses = []

    def on_epoch_end(self, epoch, logs=None):
        self.losses.append(logs["loss"])


def loss_of(power):
    def loss(y, p):
        return keras.ops.mean(keras.ops.abs(y - p) ** power)

    return loss


def of_layers(*layers, loss="mse", optimizer="sgd", metrics=()):
    model = keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(1)])
    model.compile(optimizer, loss, metrics=list(metrics))
    return model


def in_a_function():
    class Shift(keras.layers.Layer):
        def build(self, shape):
            self.b = self.add_weight(shape=(shape[-1],), initializer="ones", name="b")

        def call(self, x):
            return x + self.b

    return of_layers(Shift(), Shift())


def two_losses():
    inputs = keras.Input((3,))
    model = keras.Model(inputs, [keras.layers.Dense(1)(inputs), keras.layers.Dense(1)(inputs)])
    model.compile("sgd", [loss_of(1.0), loss_of(3.0)])
    return model


def subclassed():
    model = Block(4, lambda x: x * FACTOR, rate=0.25)
    model.compile("sgd", "mse")
    build_for(model, (X[:1], Y[:1]))
    return model


def frozen():
    model = Block(4, "relu", rate=0.5)
    model.inner.trainable = False
    model.compile("sgd", "mse")
    build_for(model, (X[:1], Y[:1]))
    return model


def with_arguments():
    dense = keras.layers.Dense(4, kernel_initializer=Constant(0.25), kernel_regularizer=Squares(0.01))
    return of_layers(dense, loss=Huber(0.75), optimizer=Slow(Decay(0.1)), metrics=[Largest()])


def functions():
    first = keras.layers.Dense(4, activation=beside.positive, kernel_initializer=beside.halves)
    return of_layers(
        first, keras.layers.Lambda(lambda x: x * FACTOR), loss=lambda y, p: abs(y - p), metrics=[beside.gap]
    )


MODELS = {
    "a part is frozen": frozen,
    "a layer with build": lambda: of_layers(Scale()),
    "a registered layer": lambda: of_layers(Registered(3.0), Scale()),
    "of a module beside the script": lambda: of_layers(beside.Shift()),
    "classes in a function": in_a_function,
    "two losses of one name": two_losses,
    "a model of a class": subclassed,
    "objects with arguments": with_arguments,
    "functions and lambdas": functions,
    "a function of JAX": lambda: of_layers(keras.layers.Dense(2, activation=beside.jax_gelu)),
}


def fitted(model):
    """Returns the numbers of two epochs, and what a callback has seen."""
    seen = Seen()
    targets = [Y, Y] if len(getattr(model, "outputs", None) or ()) > 1 else Y
    history = model.fit(X, targets, batch_size=4, epochs=2, shuffle=False, verbose=0, callbacks=[seen]).history
    return history, seen.losses, [np.asarray(variable) for variable in model.variables]


if __name__ == "__main__":
    from replicax.job.processes.call import Call, pickled
    from replicax.keras.model_pickling import ModelParcel, like_a_row
    from replicax.keras.models import install_trainer_hooks

    def opened_and_fitted(parcels):
        found = {name: fitted(parcel.opened()) for name, parcel in parcels.items()}
        return found, sorted(keras.saving.get_custom_objects())

    install_trainer_hooks()  # as a strategy's scope does
    made = {name: make() for name, make in MODELS.items()}
    batches = {"a model of a class": like_a_row((X, Y))}
    parcels = {name: ModelParcel.of(model, batches.get(name)) for name, model in made.items()}
    call = pickled(Call(opened_and_fitted, (parcels,)))
    here = {name: fitted(model) for name, model in made.items()}
    with open(sys.argv[1], "wb") as file:
        file.write(pickled(Call(dict, (here,), {"sent": call})))
