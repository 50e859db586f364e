"""Building and loading a model that is sharded over 8 devices: the peak of memory, and the time.

    python benchmarks/born_sharded.py [--parameters 1e8] [--devices 8] [--only build,load]

A model of about 1e8 parameters, an embedding and blocks of two matrices, is made under `FullyShardedStrategy`, with the
optimizer state of Adam, in a process of its own. Whenever a compiled program makes a value, the arrays that are alive
on each device are added up, with the result and XLA's temporary memory (`compiled.memory_analysis()`); between, a
thread looks every millisecond. The peak is compared with what is needed: the parts of all variables on a device, and
one part of the largest once more. In another process the memory that the process has for itself is compared with the
bytes of all variables, and a whole one of the largest. A peak of 1 is the ideal; `build_time_vs_mirrored` compares the
time until the values are on their devices with `MirroredStrategy`'s.

The loading half is that of `benchmarks/sharded_loading.py`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import keras
from sharded_loading import bytes_on_devices, own_bytes, peak_of, results

import replicax as rx
from replicax.strategies.first_values import FirstValues

WIDTH, FACTOR, SHARE = 1024, 4, 3  # One third of the parameters are in the embedding.
LAYERS = 100  # of the model whose building is timed


def build(parameters: float, devices: int) -> keras.Model:
    """Returns a model of about so many parameters, built in the current scope."""
    words = max(devices, round(parameters / SHARE / WIDTH / devices) * devices)
    blocks = max(1, round((parameters - words * WIDTH) / (2 * FACTOR * WIDTH * WIDTH)))
    layers: list[keras.layers.Layer] = [keras.layers.Embedding(words, WIDTH)]
    for _ in range(blocks):
        layers += [keras.layers.Dense(FACTOR * WIDTH, activation="relu"), keras.layers.Dense(WIDTH)]
    model = keras.Sequential([keras.Input((None,), dtype="int32"), *layers])
    jax.block_until_ready([variable.value for variable in model.variables])
    return model


def with_optimizer(model: keras.Model) -> list[keras.Variable]:
    """Returns the variables of a model and of its optimizer, which is built."""
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    jax.block_until_ready([variable.value for variable in optimizer.variables])
    return [*model.variables, *optimizer.variables]


def least(variables: Sequence[keras.Variable], devices: int) -> float:
    """Returns the bytes that a device needs at least: its parts of all variables, and of the largest once more."""
    sizes = [variable.value.nbytes for variable in variables]
    return (sum(sizes) + max(sizes)) / devices


class Counted:
    """A compiled function that adds up what is on the devices while it runs.

    Args:
        function: A function under `jax.jit`.
        seen: Where it puts the bytes of the fullest device.
    """

    def __init__(self, function: Any, seen: list[int]):
        self._function, self._seen, self._compiled = function, seen, None

    def __call__(self, *args: Any) -> Any:
        if self._compiled is None:
            self._compiled = self._function.lower(*args).compile()
        needed = self._compiled.memory_analysis()
        new = needed.temp_size_in_bytes + needed.output_size_in_bytes - needed.alias_size_in_bytes
        self._seen.append(bytes_on_devices() + new)
        return self._compiled(*args)


def on_devices(parameters: float, devices: int) -> dict[str, float]:
    """Returns how the peak of a device compares with the least possible one; in a fresh process."""
    strategy, seen = started(devices), [0]
    models: list[keras.Model] = []
    variables: list[keras.Variable] = []
    program_of: Callable[..., Any] = FirstValues._compiled
    counted: dict[int, Counted] = {}

    def noted(*args: Any) -> Counted | None:
        program = program_of(*args)
        return None if program is None else counted.setdefault(id(program), Counted(program, seen))

    FirstValues._compiled = noted  # type: ignore[assignment, method-assign]
    with strategy.scope():
        peak = max(peak_of(bytes_on_devices, lambda: models.append(build(parameters, devices))), *seen)
        seen[:] = [0]
        trained = max(peak_of(bytes_on_devices, lambda: variables.extend(with_optimizer(models[0]))), *seen)
    return {
        "build_peak_ratio": peak / least(models[0].variables, devices),
        "build_optimizer_peak_ratio": trained / least(variables, devices),
    }


def in_process(parameters: float, devices: int) -> dict[str, float]:
    """Returns how the peak of the process compares with the bytes of the variables; in a fresh process."""
    strategy = started(devices)
    variables: list[keras.Variable] = []
    with strategy.scope():
        with_optimizer(build(parameters / 100, devices))  # What the first compilation takes is not the model's.
        before = own_bytes()
        process = peak_of(own_bytes, lambda: variables.extend(with_optimizer(build(parameters, devices)))) - before
    return {"build_process_peak_ratio": process / (least(variables, devices) * devices)}


def started(devices: int) -> rx.FullyShardedStrategy:
    """Returns a strategy on so many virtual devices, in a process that gives memory back which it does not need."""
    os.environ["REPLICAX_KEEP_MEMORY"] = "0"
    rx.config.set_virtual_devices(devices)
    return rx.FullyShardedStrategy(devices)


def building_time(parameters: float, devices: int) -> dict[str, float]:
    """Returns how long a deep model takes to build and place, with everything compiled, compared with mirroring it."""
    del parameters
    rx.config.set_virtual_devices(devices)
    strategies = [rx.FullyShardedStrategy(devices, min_size=1024), rx.MirroredStrategy(devices)]
    times: list[list[float]] = [[], []]
    for _ in range(6):
        for strategy, found in zip(strategies, times, strict=True):
            start = time.perf_counter()
            with strategy.scope():
                layers = [keras.layers.Dense(128) for _ in range(LAYERS)]
                variables = with_optimizer(keras.Sequential([keras.Input((128,)), *layers]))
            jax.block_until_ready(strategy.placement.load(variables, devices))
            found.append(time.perf_counter() - start)
    sharded, mirrored = (sorted(found[1:])[2] for found in times)
    return {"build_first_seconds": times[0][0], "build_time_vs_mirrored": sharded / mirrored}


def main() -> None:
    """Prints the RESULT lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=float, default=1e8)
    parser.add_argument("--devices", type=int, default=8, help="virtual CPU devices, where there is no GPU")
    parser.add_argument("--only", default="build,load", help="build, load or both")
    options = parser.parse_args()
    found: dict[str, float] = {}
    if "build" in options.only:
        for measure in (on_devices, in_process, building_time):
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                found |= pool.apply(measure, (options.parameters, options.devices))
    if "load" in options.only:
        rx.config.set_virtual_devices(options.devices)
        found |= results(options.parameters, options.devices)
    for name, value in found.items():
        print(f"RESULT {name} {value:.3f}")


if __name__ == "__main__":
    main()
