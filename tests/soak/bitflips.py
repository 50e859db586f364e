"""Bits that flip in one device's copy of a variable: each has to be found, and the replica named; and what that costs.

python tests/soak/bitflips.py [--flips 1000]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np

import replicax as rx
from replicax.contracts.variable_access import array_of, set_array
from tests.strategies.flipping import flip

DEVICES = 8
EVERY = 100
rx.config.set_virtual_devices(DEVICES)


def flips(count: int, seed: int = 0) -> tuple[int, int, int]:
    """Returns how many flips were found, with how many the replica was named, and how many false alarms there were."""
    random = np.random.default_rng(seed)
    strategies = [
        rx.MirroredStrategy(),
        rx.LayoutStrategy(layout={".*": (None, "model")}, mesh_shape={"data": 4, "model": 2}),
    ]
    found = named = false = 0
    for number in range(count):
        strategy = strategies[number % len(strategies)]
        if number < len(strategies):
            with strategy.scope():
                strategy.own = [
                    rx.Variable(jnp.asarray(random.normal(size=(24, 16)), dtype), name=dtype, trainable=False)
                    for dtype in ("float32", "bfloat16", "float16", "int32", "int8")
                ]
        variable = strategy.own[random.integers(len(strategy.own))]
        before, device = array_of(variable), int(random.integers(DEVICES))
        bits = 8 * before.addressable_shards[0].data.nbytes
        flip(variable, device, int(random.integers(bits)))
        try:
            strategy.check_replicas(strategy.own)
        except rx.errors.ReplicaDriftError as error:
            found += 1
            named += error.replicas == (device,) and error.variables == (variable.name,)
        set_array(variable, before)
        try:
            strategy.check_replicas(strategy.own)
        except rx.errors.ReplicaDriftError:
            false += 1
    return found, named, false


def cost(steps: int = 3 * EVERY) -> float:
    """Returns what comparing at every 100th step adds to the time of a training, as a part of it."""
    strategy = rx.MirroredStrategy()
    with strategy.scope():
        weights = [rx.Variable(jnp.ones((256, 256)) / 256) for _ in range(8)]
    batch = np.ones((8 * 64, 256), np.float32)

    def replica(x: jax.Array) -> jax.Array:
        def loss() -> jax.Array:
            y = x
            for weight in weights:
                y = jnp.tanh(y @ weight.value)
            return jnp.sum(y**2) / len(batch)

        value, grads = rx.value_and_grad(loss, weights)()
        for weight, grad in zip(weights, grads, strict=True):
            weight.assign_sub(1e-3 * grad)
        return value

    (rows,) = list(strategy.distribute_dataset([batch]))

    @rx.function
    def step(x: jax.Array) -> jax.Array:
        return strategy.reduce("sum", strategy.run(replica, args=(x,)))

    jax.block_until_ready(step(rows))
    strategy.check_replicas(weights)
    seconds, digests = [], []
    for _ in range(steps):
        begin = time.perf_counter()
        jax.block_until_ready(step(rows))
        seconds.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        strategy.check_replicas(weights)
        digests.append(time.perf_counter() - begin)
    return float(np.median(digests) / (EVERY * np.median(seconds)))


def keep_cost(steps: int = EVERY) -> dict[str, float]:
    """Returns the milliseconds of a step of `fit`, and those of a processor that `ReplicaDigest(keep=...)` takes."""
    os.environ.setdefault("KERAS_BACKEND", "jax")
    import keras

    from replicax.keras.kept_steps import KeptSteps

    taken: dict[str, list[float]] = {"add": [], "begin": []}
    ends: list[float] = []

    def timed(name: str) -> None:
        call = getattr(KeptSteps, name)

        def made(*args: object) -> None:
            begin = time.thread_time()  # Other work on the machine does not count.
            call(*args)
            taken[name].append(1000 * (time.thread_time() - begin))

        setattr(KeptSteps, name, made)

    class Ends(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: object = None) -> None:
            ends.append(time.perf_counter())

    for name in taken:
        timed(name)
    keras.utils.set_random_seed(0)
    with rx.MirroredStrategy().scope():
        model = keras.Sequential([keras.Input((256,)), *(keras.layers.Dense(256, "tanh") for _ in range(8))])
        model.compile("adam", "mse")
    x = np.ones((8 * 64 * steps, 256), np.float32)  # batches of a megabyte, with targets
    with tempfile.TemporaryDirectory() as folder:
        digest = rx.keras.ReplicaDigest(EVERY, folder)
        model.fit(x, x, 8 * 64, shuffle=False, verbose=0, callbacks=[Ends(), digest])
    return {
        "step": 1000 * float(np.median(np.diff(ends))),
        "keep": float(np.median(taken["add"][1:])),
        "keep_first": taken["add"][0],  # It exports the program.
        "keep_comparison": float(np.median(taken["begin"])),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--flips", type=int, default=1000)
    found, named, false = flips(parser.parse_args().flips)
    print(f"RESULT bitflips_found {found}")
    print(f"RESULT bitflips_named {named}")
    print(f"RESULT bitflips_false_alarms {false}")
    print(f"RESULT digest_cost {cost():.5f}")
    for what, milliseconds in keep_cost().items():
        print(f"RESULT fit_{what}_ms {milliseconds:.3f}")


if __name__ == "__main__":
    main()
