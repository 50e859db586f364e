"""Tables whose rows are split over the devices of one process: the layer's step beside hand-written JAX.

Used by `benchmarks/tables.py`. The step looks 8 ids up for each of 1024 rows of a batch, in a table of 1,000,000 x 64,
and combines them by a sum; the loss is the mean squared distance to a target. The hand-written variants do the same,
each in one compiled program that updates its table in place:

- gathered: each device gets all ids, looks up those rows that it has, and the sums of what the devices have found are
  scattered (`psum_scatter`). All gradients go to all devices.
- sent: each device sends each id to the owner of its row, and gets the row back (`all_to_all`). There is room for all
  ids of a device to have the same owner.

With SGD an update is one scatter-add; Adagrad needs the sum of the gradients of each row first. The tables are compared
after three steps.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import keras_rs
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from timing import interleaved_medians, print_table

import replicax as rx

ROWS, COLUMNS, BATCH, IDS = 1_000_000, 64, 1024, 8
RATE = 0.1
STEPS_COMPARED = 3
SPLIT, WHOLE = PartitionSpec("replica"), PartitionSpec()


class Layer:
    """The layer in a custom training loop."""

    def __init__(self, strategy: rx.Strategy, first: np.ndarray, batch: Any, optimizer: str = "sgd"):
        table = keras_rs.layers.TableConfig(
            "table", ROWS, COLUMNS, keras.initializers.Zeros(), _optimizer(optimizer), "sum"
        )
        with strategy.scope():
            feature = keras_rs.layers.FeatureConfig("ids", table, (BATCH, IDS), (BATCH, COLUMNS))
            layer = rx.keras.DistributedEmbedding(feature)
        layer.load_own_variables({"table": first})

        def replica_step(batch: Any) -> Any:
            ids, targets = batch

            def loss() -> Any:
                return jnp.sum(jnp.square(layer(ids) - targets)) / (BATCH * COLUMNS)

            return rx.value_and_grad(loss, layer.trainable_variables)()[0]

        @rx.function
        def step(batch: Any) -> Any:
            return strategy.reduce("sum", strategy.run(replica_step, args=(batch,)))

        [self._batch] = strategy.distribute_dataset([batch])
        self._step, self._layer = step, layer
        self.loss: Any = None

    def __call__(self) -> None:
        self.loss = self._step(self._batch)

    def finish(self) -> None:
        jax.block_until_ready(self.loss)
        jax.block_until_ready([variable._value for variable in self._layer.variables])

    def table(self) -> np.ndarray:
        return np.asarray(self._layer.get_embedding_tables()["table"])

    def compiled(self) -> Any:
        return self._step.lower(self._batch).compile()


class ByHand:
    """Hand-written JAX."""

    def __init__(self, how: str, devices: int, first: np.ndarray, batch: Any, optimizer: str = "sgd"):
        kinds = (jax.sharding.AxisType.Auto,)
        mesh = jax.make_mesh((devices,), ("replica",), axis_types=kinds, devices=jax.devices()[:devices])
        split = NamedSharding(mesh, SPLIT)
        look_up = {"gathered": _gathered, "sent": _sent}[how]
        rows = ROWS // devices

        def on_device(state: tuple[jax.Array, ...], ids: jax.Array, targets: jax.Array) -> tuple[Any, jax.Array]:
            flat = ids.reshape(-1)
            found, give_back = look_up(state[0], flat, devices, rows)
            distance = found.reshape(*ids.shape, COLUMNS).sum(1) - targets
            loss = jax.lax.psum(jnp.sum(jnp.square(distance)) / (BATCH * COLUMNS), "replica")
            gradient = jnp.repeat(distance * (2 / (BATCH * COLUMNS)), IDS, axis=0)
            positions, gradients = give_back(gradient)
            return _UPDATES[optimizer](state, positions, gradients), loss

        kind = tuple(SPLIT for _ in range(1 + (optimizer != "sgd")))
        step = jax.shard_map(
            on_device, mesh=mesh, in_specs=(kind, SPLIT, SPLIT), out_specs=(kind, WHOLE), check_vma=False
        )
        self._step = jax.jit(step, donate_argnums=0)
        self._state = (jax.device_put(first, split),)
        if optimizer != "sgd":
            self._state = (*self._state, jax.device_put(np.full_like(first, 0.1), split))
        self._batch = [jax.device_put(each, split) for each in batch]
        self.loss: Any = None

    def __call__(self) -> None:
        self._state, self.loss = self._step(self._state, *self._batch)

    def finish(self) -> None:
        jax.block_until_ready((self._state, self.loss))

    def table(self) -> np.ndarray:
        return np.asarray(self._state[0])


def _optimizer(name: str) -> keras.optimizers.Optimizer:
    return {"sgd": keras.optimizers.SGD, "adagrad": keras.optimizers.Adagrad}[name](RATE)


GiveBack = Callable[[jax.Array], tuple[jax.Array, jax.Array]]


def _gathered(table: jax.Array, ids: jax.Array, devices: int, rows: int) -> tuple[jax.Array, GiveBack]:
    del devices
    all_ids = jax.lax.all_gather(ids, "replica", tiled=True)
    own = all_ids - jax.lax.axis_index("replica") * rows
    own = jnp.where((own >= 0) & (own < rows), own, rows)
    found = table.at[own].get(mode="fill", fill_value=0)
    mine = jax.lax.psum_scatter(found, "replica", scatter_dimension=0, tiled=True)
    return mine, lambda gradient: (own, jax.lax.all_gather(gradient, "replica", tiled=True))


def _sent(table: jax.Array, ids: jax.Array, devices: int, rows: int) -> tuple[jax.Array, GiveBack]:
    owner, count = ids // rows, ids.shape[0]
    is_owner = owner[:, None] == jnp.arange(devices)
    place = jnp.take_along_axis(jnp.cumsum(is_owner, axis=0), owner[:, None], axis=1)[:, 0] - 1
    exchange = functools.partial(jax.lax.all_to_all, axis_name="replica", split_axis=0, concat_axis=0, tiled=True)
    asked = exchange(jnp.full((devices, count), rows, jnp.int32).at[owner, place].set(ids % rows))
    found = exchange(table.at[asked].get(mode="fill", fill_value=0))

    def give_back(gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
        sent = exchange(jnp.zeros((devices, count, COLUMNS), gradient.dtype).at[owner, place].set(gradient))
        return asked.reshape(-1), sent.reshape(-1, COLUMNS)

    return found[owner, place], give_back


def _sgd(state: tuple[jax.Array, ...], rows: jax.Array, gradients: jax.Array) -> tuple[jax.Array, ...]:
    return (state[0].at[rows].add(-RATE * gradients, mode="drop"),)


def _adagrad(state: tuple[jax.Array, ...], rows: jax.Array, gradients: jax.Array) -> tuple[jax.Array, ...]:
    table, accumulator = state
    ordered, origin = jax.lax.sort((rows, jnp.arange(len(rows), dtype=jnp.int32)), num_keys=1)
    number = jnp.cumsum(jnp.concatenate([jnp.zeros(1, jnp.int32), (ordered[1:] != ordered[:-1]).astype(jnp.int32)]))
    distinct = jnp.full_like(rows, table.shape[0]).at[number].set(ordered)
    sums = jnp.zeros_like(gradients).at[number].add(gradients[origin])
    new = accumulator.at[distinct].get(mode="fill", fill_value=1) + sums * sums
    change = -RATE * sums / jnp.sqrt(new + 1e-7)
    return table.at[distinct].add(change, mode="drop"), accumulator.at[distinct].set(new, mode="drop")


_UPDATES = {"sgd": _sgd, "adagrad": _adagrad}


def batch_of(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns a global batch of ids and targets: ids spread evenly, or a few of them frequent, as in recommenders."""
    rng = np.random.default_rng(0)
    if kind == "even":
        ids = rng.integers(0, ROWS, (BATCH, IDS))
    else:
        ids = np.minimum(rng.zipf(1.2, (BATCH, IDS)) - 1, ROWS - 1)
    return ids.astype(np.int32), rng.normal(size=(BATCH, COLUMNS)).astype(np.float32)


def measure(devices: int, rounds: int, steps: int) -> dict[str, float]:
    """Prints times, and returns the figures: the layer's time by the best hand-written one's, and the difference."""
    strategy = rx.MirroredStrategy([f"cpu:{i}" for i in range(devices)])
    first = np.random.default_rng(1).normal(scale=0.1, size=(ROWS, COLUMNS)).astype(np.float32)
    lines, ratios, differences = [], {}, []
    for kind, optimizer in (("even", "sgd"), ("frequent", "sgd"), ("even", "adagrad"), ("frequent", "adagrad")):
        batch = batch_of(kind)
        variants: dict[str, Any] = {"layer": Layer(strategy, first, batch, optimizer)}
        variants |= {how: ByHand(how, devices, first, batch, optimizer) for how in ("gathered", "sent")}
        for _ in range(STEPS_COMPARED):
            for step in variants.values():
                step()
        tables = {name: each.table() for name, each in variants.items()}
        differences += [float(np.abs(tables["layer"] - tables[how]).max()) for how in ("gathered", "sent")]
        del tables
        seconds = interleaved_medians(variants, {name: each.finish for name, each in variants.items()}, rounds, steps)
        ratios[kind, optimizer] = seconds["layer"] / min(seconds["gathered"], seconds["sent"])
        milliseconds = [f"{1e3 * seconds[name]:.2f}" for name in variants]
        lines.append((f"{optimizer}, ids {kind}", *milliseconds, f"{ratios[kind, optimizer]:.2f}"))
        del variants
    print_table(f"Milliseconds a step, {devices} devices", ("", "layer", "gathered", "sent", "layer/best"), lines)
    return {
        "table_step_vs_gather": max(ratios["even", "sgd"], ratios["frequent", "sgd"]),
        "table_step_vs_gather_adagrad": max(ratios["even", "adagrad"], ratios["frequent", "adagrad"]),
        "table_max_difference": max(differences),
    }
