"""Deep models for `benchmarks/compile.py`: the same training step with replicax and by hand in JAX.

Each case is a network of dense layers with as many features inside as outside, trained on the cross entropy of integer
labels over a global batch, on every device there is. A case is one of

- `layers`: Keras layers and Keras's Adam, `layers` of them and one for the classes: three variables a weight;
- `variables`: `rx.Variable`s without Keras, and momentum: two variables a weight, `variables` in all.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

WIDTH, CLASSES, ROWS, RATE, MOMENTUM = 32, 10, 64, 1e-3, 0.9
EPSILON = 1e-12  # Keras and optax add it at different places: so small, it makes no difference.

Weights = list[tuple[Any, Any]]


@dataclasses.dataclass(frozen=True)
class Case:
    """A model and its optimizer.

    Attributes:
        layers: Number of dense layers, the last one aside.
        adam: Whether it is trained with Adam (and Keras), otherwise with momentum (and no Keras).
    """

    layers: int
    adam: bool

    def weights(self) -> Weights:
        """Returns the first weights, float32, `(inputs, outputs)` and `(outputs,)` for each layer; always the same."""
        rng = np.random.default_rng(0)
        sizes = [WIDTH] * (self.layers + 1) + [CLASSES]
        return [(_orthogonal(rng, a, b), np.zeros(b, np.float32)) for a, b in itertools.pairwise(sizes)]

    def optimizer(self) -> optax.GradientTransformation:
        """Returns the optimizer of the hand-written step, with the settings of the other's."""
        return optax.adam(RATE, eps=EPSILON) if self.adam else optax.sgd(RATE, MOMENTUM)


def _orthogonal(rng: np.random.Generator, inputs: int, outputs: int) -> np.ndarray:
    """Keeps the lengths of signals and gradients, so that the numbers of a deep network can be compared."""
    q, _ = np.linalg.qr(rng.normal(size=(inputs, max(inputs, outputs))))
    return q[:, :outputs].astype(np.float32)


def batch() -> tuple[np.ndarray, np.ndarray]:
    """Returns inputs `(rows, features)` and labels `(rows,)`."""
    rng = np.random.default_rng(1)
    return rng.normal(size=(ROWS, WIDTH)).astype(np.float32), rng.integers(0, CLASSES, ROWS).astype(np.int32)


Step = Callable[[], Any]  # Makes one step and returns the loss.


def apply(weights: Any, x: jax.Array) -> jax.Array:
    """Returns logits `(rows, classes)`."""
    for w, b in weights[:-1]:
        x = jnp.tanh(x @ w + b)
    w, b = weights[-1]
    return x @ w + b


def loss_sum(weights: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    """Returns the sum of the rows' cross entropies."""
    return jnp.sum(optax.softmax_cross_entropy_with_integer_labels(apply(weights, x), y))


def by_hand_shard_map(case: Case) -> Step:
    """One replica's view in plain JAX: `jax.grad` sums the gradients of replicated weights over replicas."""
    mesh = _mesh()
    shared, split = PartitionSpec(), PartitionSpec("replica")

    def step(weights: Any, state: Any, x: jax.Array, y: jax.Array) -> Any:
        weights, state, loss = _update(case, weights, state, x, y)
        return weights, state, jax.lax.psum(loss, "replica")

    specs = {"in_specs": (shared, shared, split, split), "out_specs": shared}
    return _by_hand(case, jax.shard_map(step, mesh=mesh, **specs), mesh)


def by_hand_gspmd(case: Case) -> Step:
    """The global view in plain JAX, partitioned by XLA."""

    def step(weights: Any, state: Any, x: jax.Array, y: jax.Array) -> Any:
        return _update(case, weights, state, x, y)

    return _by_hand(case, step, _mesh())


def _update(case: Case, weights: Any, state: Any, x: jax.Array, y: jax.Array) -> Any:
    loss, grads = jax.value_and_grad(lambda weights: loss_sum(weights, x, y) / ROWS)(weights)
    updates, state = case.optimizer().update(grads, state)
    return optax.apply_updates(weights, updates), state, loss


def _mesh() -> Mesh:
    return Mesh(np.array(jax.devices()), ("replica",))


def _by_hand(case: Case, step: Callable[..., Any], mesh: Mesh) -> Step:
    weights = case.weights()
    state = jax.device_put((weights, case.optimizer().init(weights)), NamedSharding(mesh, PartitionSpec()))
    data = jax.device_put(batch(), NamedSharding(mesh, PartitionSpec("replica")))
    compiled = jax.jit(step, donate_argnums=(0, 1))

    def call() -> Any:
        nonlocal state
        *state, loss = compiled(*state, *data)
        return loss

    return call


def keras_by_hand(case: Case) -> Step:
    """The same Keras model and optimizer under plain `jax.jit`, by Keras's stateless methods, partitioned by XLA."""
    model, optimizer, per_example = _keras_model(case)
    mesh = _mesh()
    state = [[v.value for v in vs] for vs in (model.trainable_variables, optimizer.variables)]
    state = jax.device_put(state, NamedSharding(mesh, PartitionSpec()))
    data = jax.device_put(batch(), NamedSharding(mesh, PartitionSpec("replica")))

    def step(weights: Any, slots: Any, x: jax.Array, y: jax.Array) -> Any:
        def loss_of(weights: Any) -> Any:
            logits, _ = model.stateless_call(weights, [], x, training=True)
            return jnp.sum(per_example(y, logits)) / ROWS

        loss, grads = jax.value_and_grad(loss_of)(weights)
        return *optimizer.stateless_apply(slots, grads, weights), loss

    compiled = jax.jit(step, donate_argnums=(0, 1))

    def call() -> Any:
        nonlocal state
        *state, loss = compiled(*state, *data)
        return loss

    return call


def _keras_model(case: Case) -> Any:
    import keras

    layers: list[Any] = [keras.layers.Dense(WIDTH, activation="tanh") for _ in range(case.layers)]
    model = keras.Sequential([keras.Input((WIDTH,)), *layers, keras.layers.Dense(CLASSES)])
    for variable, value in zip(model.variables, (w for pair in case.weights() for w in pair), strict=True):
        variable.assign(value)
    optimizer = keras.optimizers.Adam(RATE, epsilon=EPSILON)
    optimizer.build(model.trainable_variables)
    return model, optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


def replicax(case: Case) -> Step:
    """The custom loop of replicax: `rx.function` around `strategy.run`."""
    import replicax as rx

    strategy = rx.MirroredStrategy()
    train_step = (_keras_step if case.adam else _variables_step)(strategy, case)
    (data,) = strategy.distribute_dataset([batch()], rx.InputOptions(prefetch=0))

    @rx.function
    def step(batch: Any) -> Any:
        return strategy.reduce("sum", strategy.run(train_step, args=(batch,)))

    return lambda: step(data)


def _keras_step(strategy: Any, case: Case) -> Callable[[Any], Any]:
    import replicax as rx

    with strategy.scope():
        model, optimizer, per_example = _keras_model(case)

    def train_step(batch: Any) -> Any:
        x, y = batch

        def loss_fn() -> Any:
            return rx.compute_average_loss(per_example(y, model(x, training=True)), global_batch_size=ROWS)

        loss, gradients = rx.value_and_grad(loss_fn, model.trainable_variables)()
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return train_step


def _variables_step(strategy: Any, case: Case) -> Callable[[Any], Any]:
    import replicax as rx

    with strategy.scope():
        weights = [(rx.Variable(w), rx.Variable(b)) for w, b in case.weights()]
        traces = [(rx.Variable(np.zeros_like(w)), rx.Variable(np.zeros_like(b))) for w, b in case.weights()]

    def train_step(batch: Any) -> Any:
        x, y = batch

        def loss_fn() -> Any:
            return loss_sum([(w.value, b.value) for w, b in weights], x, y) / ROWS

        loss, gradients = rx.value_and_grad(loss_fn, weights)()
        leaves = jax.tree_util.tree_leaves
        for weight, trace, gradient in zip(leaves(weights), leaves(traces), leaves(gradients), strict=True):
            trace.assign(gradient + MOMENTUM * trace)
            weight.assign_sub(RATE * trace.value)
        return loss

    return train_step


VARIANTS: dict[str, Callable[[Case], Step]] = {
    "replicax": replicax,
    "hand-written shard_map": by_hand_shard_map,
    "hand-written GSPMD": by_hand_gspmd,
    "Keras under jax.jit": keras_by_hand,
}
