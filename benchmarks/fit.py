"""`Model.fit` under replicax, under `keras.distribution.DataParallel` and on one device: time of a step, and start-up.

    python benchmarks/fit.py [--devices 8] [--rounds 9] [--steps 40] [--starts 3]

The network is 784-700-500-10 with Adam, the global batch 128. Steps: the variants run in turn in one process, each turn
one call of `fit` with everything compiled; a figure is the median of its time divided by its steps. Start-up: from the
first import to the end of the first step, in new processes, without and with JAX's persistent compilation cache (told
to keep also what compiles in less than a second, which is everything here).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import handwritten as hand
import jax
import keras
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from timing import interleaved_medians, print_table

import replicax as rx

ROWS = 128
OURS, THEIRS, ALONE, BY_HAND = "replicax", "keras DataParallel", "one device, plain Keras", "hand-written loop"


class Fit:
    """A model that was made and is trained with the context `place` around it.

    Args:
        place: Returns a context manager: the strategy's scope, or what takes its place.
        data: Inputs and labels; one call is one epoch of them.
    """

    def __init__(self, place: Any, data: tuple[np.ndarray, np.ndarray]):
        self._place, self._data = place, data
        with place():
            layers = [keras.layers.Dense(size, activation="relu") for size in hand.SIZES[1:-1]]
            self._model = keras.Sequential([keras.Input(hand.SIZES[:1]), *layers, keras.layers.Dense(hand.SIZES[-1])])
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            self._model.compile(keras.optimizers.Adam(1e-3), loss)

    def __call__(self) -> None:
        """Fits one epoch."""
        with self._place():
            self._model.fit(*self._data, batch_size=ROWS, verbose=0)

    def wait(self) -> None:
        """Waits for the last step."""
        jax.block_until_ready([variable.value for variable in self._model.variables])


class HandWrittenLoop:
    """What is left of `fit` without Keras: take rows, put them on the devices, make a step."""

    def __init__(self, mesh: jax.sharding.Mesh, data: tuple[np.ndarray, np.ndarray]):
        self._x, self._y = data
        self._cut = NamedSharding(mesh, PartitionSpec("replica"))
        step = hand.make_gspmd_step(mesh, ROWS)
        self._step = hand.HandWritten(step, mesh, hand.SIZES, (self._x[:ROWS], self._y[:ROWS]))

    def __call__(self) -> None:
        """Makes one epoch."""
        order = np.random.default_rng(0).permutation(len(self._x))
        for start in range(0, len(order), ROWS):
            rows = order[start : start + ROWS]
            self._step.batch = jax.device_put((self._x[rows], self._y[rows]), self._cut)
            self._step()

    def wait(self) -> None:
        """Waits for the last step."""
        self._step.wait()


@contextlib.contextmanager
def distribution(of: keras.distribution.DataParallel) -> Iterator[None]:
    """Keras's distribution is a setting of the process: it holds for this block only."""
    keras.distribution.set_distribution(of)
    try:
        yield
    finally:
        keras.distribution.set_distribution(None)


def step_seconds(rounds: int, steps: int) -> dict[str, float]:
    """Returns seconds per step of each variant."""
    strategy = rx.MirroredStrategy()
    data = hand.make_batch(ROWS * steps)
    parallel = keras.distribution.DataParallel(devices=keras.distribution.list_devices())
    variants: dict[str, Any] = {
        OURS: Fit(strategy.scope, data),
        THEIRS: Fit(lambda: distribution(parallel), data),
        ALONE: Fit(contextlib.nullcontext, data),
        BY_HAND: HandWrittenLoop(strategy.mesh, data),
    }
    epochs = interleaved_medians(variants, {name: v.wait for name, v in variants.items()}, rounds, 1)
    return {name: seconds / steps for name, seconds in epochs.items()}


# Start-up. Each program imports what it needs and ends when its first step has.

_MODEL = """keras.Sequential(
        [keras.Input((784,))] + [keras.layers.Dense(n, "relu") for n in (700, 500)] + [keras.layers.Dense(10)]
    )"""

_FIT = """
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(np.ones((128, 784), "float32"), np.zeros(128, "int32"), batch_size=128, verbose=0)
jax.block_until_ready([variable.value for variable in model.variables])
"""

_REPLICAX = f"""
import replicax as rx
import jax
import keras
import numpy as np

rx.config.set_virtual_devices(DEVICES)
with rx.MirroredStrategy().scope():
    model = {_MODEL}
{_FIT}"""

_KERAS = f"""
import jax
import keras
import numpy as np

model = {_MODEL}
{_FIT}"""

_JAX = """
import jax
import jax.numpy as jnp
import numpy as np

sizes = (784, 700, 500, 10)

def init(key):
    keys = jax.random.split(key, 3)
    return [(jax.random.normal(k, (m, n)) * m**-0.5, jnp.zeros(n)) for k, m, n in zip(keys, sizes, sizes[1:])]

def loss_fn(params, x, y):
    for w, b in params[:-1]:
        x = jax.nn.relu(x @ w + b)
    w, b = params[-1]
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(x @ w + b), y[:, None], 1))

@jax.jit
def step(params, m, v, x, y):
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, grads)
    v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, grads)
    params = jax.tree.map(lambda w, m, v: w - 1e-3 * (m / 0.1) / (jnp.sqrt(v / 0.001) + 1e-7), params, m, v)
    return params, m, v, loss

params = jax.jit(init)(jax.random.key(0))
zeros = jax.tree.map(lambda w: np.zeros_like(w), params)
jax.block_until_ready(step(params, zeros, zeros, np.ones((128, 784), "float32"), np.zeros(128, "int32")))
"""

PROGRAMS = {OURS: _REPLICAX, ALONE: _KERAS, "bare JAX, one device": _JAX}


def startup_seconds(devices: int, starts: int) -> dict[str, tuple[float, float]]:
    """Returns for each program the median seconds of a start without and with what an earlier one has compiled."""
    times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in PROGRAMS}
    for _ in range(starts):
        for name, (cold, cached) in times.items():
            with tempfile.TemporaryDirectory() as folder:
                cold.append(_start(name, devices, folder))
                cached.append(_start(name, devices, folder))
    return {name: (statistics.median(cold), statistics.median(cached)) for name, (cold, cached) in times.items()}


def _start(name: str, devices: int, cache: str) -> float:
    keep_all = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_COMPILATION_CACHE_DIR": cache, **keep_all}
    for set_here in ("NPROC", "JAX_NUM_CPU_DEVICES"):
        environment.pop(set_here, None)
    program = PROGRAMS[name].replace("DEVICES", str(devices))
    timed = f"import time\nstart = time.perf_counter()\n{program}\nprint(time.perf_counter() - start)"
    done = subprocess.run([sys.executable, "-c", timed], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"The program {name!r} failed:\n{done.stderr}")
    return float(done.stdout.split()[-1])


def main() -> None:
    """Prints the tables and the RESULT lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=8, help="virtual CPU devices, where there is no GPU")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=40, help="steps of a variant in each round")
    parser.add_argument("--starts", type=int, default=3, help="starts of each program, cold and cached; 0: none")
    options = parser.parse_args()

    startups = startup_seconds(options.devices, options.starts) if options.starts else {}
    rx.config.set_virtual_devices(options.devices)
    steps = step_seconds(options.rounds, options.steps)
    rows = [(name, f"{seconds * 1e3:.2f}", f"{seconds / steps[THEIRS]:.3f}") for name, seconds in steps.items()]
    print_table(f"one step of fit, {len(jax.local_devices())} devices", ("variant", "ms", "ratio"), rows)
    if startups:
        rows = [(name, f"{cold:.2f}", f"{cached:.2f}") for name, (cold, cached) in startups.items()]
        print_table("import to first finished step", ("program", "cold, s", "cached, s"), rows)
    print(f"RESULT fit_vs_data_parallel {steps[OURS] / steps[THEIRS]:.3f}")
    print(f"RESULT fit_vs_handwritten_loop {steps[OURS] / steps[BY_HAND]:.3f}")
    print(f"RESULT fit_vs_one_device {steps[OURS] / steps[ALONE]:.3f}")
    if startups:
        cold, cached = startups[OURS]
        print(f"RESULT fit_startup_cold_s {cold:.2f}")
        print(f"RESULT fit_startup_cached_s {cached:.2f}")


if __name__ == "__main__":
    main()
