"""Loading a file of weights into a model that is sharded over 8 devices: the peak of memory, and the time.

    python benchmarks/sharded_loading.py [--parameters 1e8] [--devices 8] [--rounds 7]

A model of about 1e8 parameters is made and saved on one device. In a process of its own the same model is made under
`FullyShardedStrategy` and loads the file, while a thread looks every millisecond at the arrays that are alive on each
device, and at the memory that the process has for itself (`RssAnon`). The largest piece is the part that a device has
of the largest variable; to the process, whose memory is that of all devices and of the host, a whole variable may be
added for each of the two. Then plain Keras on one device and the sharded model load the file in turns.
"""

from __future__ import annotations

import argparse
import collections
import gc
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import keras

import replicax as rx

WIDTH = 2048
MIB = 2**20


def build(parameters: float) -> keras.Model:
    """Returns a model of about so many parameters, in layers of two shapes."""
    pairs = max(1, round(parameters / (2 * WIDTH * 2 * WIDTH)))
    hidden = [keras.layers.Dense(WIDTH * (1 if i % 2 else 2), name=f"dense{i}") for i in range(2 * pairs)]
    return keras.Sequential([keras.Input((WIDTH,)), *hidden])


def bytes_on_devices() -> int:
    """Returns the bytes of the arrays on the fullest device."""
    buffers: dict[tuple[jax.Device, int], int] = {}
    for array in jax.live_arrays():  # A sharded array and its shards are listed both.
        for shard in [] if array.is_deleted() else array.addressable_shards:
            buffers[shard.device, shard.data.unsafe_buffer_pointer()] = shard.data.nbytes
    held: collections.Counter[jax.Device] = collections.Counter()
    for (device, _), size in buffers.items():
        held[device] += size
    return max(held.values(), default=0)


def own_bytes() -> int:
    """Returns the memory that this process has for itself, files that it has mapped aside."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no RssAnon: this benchmark needs Linux.")


def peak_of(measure: Callable[[], int], action: Callable[[], object]) -> int:
    """Returns the most bytes that `measure` finds while `action` runs; it looks every millisecond."""
    done = threading.Event()
    gc.collect()
    seen = [measure()]

    def look() -> None:
        while not done.wait(0.001):
            seen.append(measure())

    thread = threading.Thread(target=look)
    thread.start()
    action()
    done.set()
    thread.join()
    return max(seen)


def loading_peak(path: str, parameters: float, devices: int) -> tuple[float, float]:
    """Returns how the peaks of a device and of the process compare with the least possible ones; in a fresh process."""
    os.environ["REPLICAX_KEEP_MEMORY"] = "0"  # Otherwise memory that was freed is counted too.
    rx.config.set_virtual_devices(devices)
    with rx.FullyShardedStrategy(devices).scope():
        model = build(parameters)
    sizes = [variable.value.nbytes for variable in model.weights]
    total, largest = sum(sizes), max(sizes)
    device = peak_of(bytes_on_devices, lambda: model.load_weights(path))
    # A look at the arrays keeps them alive for as long as it takes, so the process is looked at by itself.
    before = own_bytes()
    process = peak_of(own_bytes, lambda: model.load_weights(path)) - before
    # The variables are there before and after: what comes on top is the new value of one, and the host's part of it.
    return device / (total / devices + largest / devices), (total + process) / (total + 2 * largest)


def timed(model: keras.Model, path: str) -> float:
    start = time.perf_counter()
    model.load_weights(path)
    jax.block_until_ready([variable.value for variable in model.weights])
    return time.perf_counter() - start


def results(parameters: float = 1e8, devices: int = 8, rounds: int = 7) -> dict[str, float]:
    """Returns the figures by name; `rx.config.set_virtual_devices(devices)` has been called."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.weights.h5")
        plain = build(parameters)
        plain.save_weights(path)
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            device, process = pool.apply(loading_peak, (path, parameters, devices))
        with rx.FullyShardedStrategy(devices).scope():
            sharded = build(parameters)
        turns = [(timed(plain, path), timed(sharded, path)) for _ in range(rounds + 1)][1:]
    return {
        "load_peak_ratio": device,
        "load_process_peak_ratio": process,
        "load_seconds_vs_plain": statistics.median(ours / theirs for theirs, ours in turns),
    }


def main() -> None:
    """Prints the RESULT lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=float, default=1e8)
    parser.add_argument("--devices", type=int, default=8, help="virtual CPU devices, where there is no GPU")
    parser.add_argument("--rounds", type=int, default=7, help="turns of loading")
    options = parser.parse_args()
    rx.config.set_virtual_devices(options.devices)
    for name, value in results(options.parameters, options.devices, options.rounds).items():
        print(f"RESULT {name} {value:.3f}")


if __name__ == "__main__":
    main()
