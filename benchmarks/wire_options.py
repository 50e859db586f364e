"""What a sharded update and compressed gradients cost and save: a custom loop on 8 virtual devices, and in 2 processes.

    python benchmarks/wire_options.py [--rounds 7] [--steps 10] [--width 700]

The network is 784-W-500-10, trained by Keras's Adam on a global batch of 128 rows. For each option: the median time of
a step, interleaved with the others; the bytes that each device sends in a step, counted from the HLO (in a ring, an
all-reduce goes round twice); and the bytes of Adam's moments on a device. Between processes of one machine bytes are
nearly free, so the times show what an option costs; its bytes say when a slow network pays for that.
"""

from __future__ import annotations

import argparse
import functools
import os
import re
from collections.abc import Callable
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np
from problem import ROWS, make_batch
from timing import interleaved_medians, print_table

import replicax as rx

OPTIONS: dict[str, dict[str, Any]] = {
    "whole update": {"shard_update": False},
    "sharded update": {"shard_update": True},
    "bfloat16": {"shard_update": False, "compression": "bfloat16"},
    "int8": {"compression": "int8"},
    "powersgd": {"compression": "powersgd"},
}
MIB = 2**20
_BYTES = {"f32": 4, "s8": 1, "bf16": 2, "f16": 2, "s32": 4, "u32": 4}
_COLLECTIVE = re.compile(r" = (\(.*?\)|\S+) (all-reduce|reduce-scatter|all-gather|all-to-all)\((.*?)\)", re.M)


class Loop:
    """A custom loop under one option.

    Args:
        kind: Makes the strategy.
        option: Its options.
        width: Of the first hidden layer.
    """

    def __init__(self, kind: Callable[..., Any], option: dict[str, Any], width: int):
        communication = rx.CommunicationOptions(compression=option.get("compression"))
        self.strategy = kind(communication_options=communication, shard_update=option.get("shard_update"))
        keras.utils.set_random_seed(0)
        with self.strategy.scope():
            layers = [keras.layers.Dense(size, activation="relu") for size in (width, 500)]
            self.model = keras.Sequential([keras.Input((784,)), *layers, keras.layers.Dense(10)])
            self.optimizer = keras.optimizers.Adam(1e-3)
        self.train = rx.function(lambda batch: self.strategy.run(self._step, args=(batch,)))
        [self.batch] = self.strategy.distribute_dataset([make_batch(ROWS)])
        for _ in range(2):
            self.step()

    def _step(self, batch: Any) -> None:
        x, y = batch
        variables = self.model.trainable_variables
        per_row = functools.partial(keras.losses.sparse_categorical_crossentropy, from_logits=True)
        _, gradients = rx.value_and_grad(lambda: keras.ops.sum(per_row(y, self.model(x))) / ROWS, variables)()
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))

    def step(self) -> None:
        self.train(self.batch)

    def finish(self) -> None:
        self.model.trainable_variables[-1].value.block_until_ready()

    def sent(self) -> float:
        """Returns the bytes that a device sends in a step."""
        replicas, total = self.strategy.num_replicas_in_sync, 0.0
        for types, kind, _ in _COLLECTIVE.findall(self.train.lower(self.batch).compile().as_text()):
            size = sum(_BYTES[dtype] * _elements(dims) for dtype, dims in re.findall(r"(\w+)\[([\d,]*)\]", types))
            total += size * {"all-reduce": 2, "reduce-scatter": replicas}.get(kind, 1)
        return total * (replicas - 1) / replicas

    def moments(self) -> int:
        """Returns the bytes of the optimizer's state on the first device."""
        return sum(v.value.addressable_shards[0].data.nbytes for v in self.optimizer.variables)


def _elements(dims: str) -> int:
    return int(np.prod([int(size) for size in dims.split(",") if size]))


def measured(kind: Callable[..., Any], rounds: int, steps: int, width: int) -> dict[str, list[float]]:
    """Returns for each option milliseconds, MiB that are sent, and MiB of moments."""
    loops = {name: Loop(kind, option, width) for name, option in OPTIONS.items()}
    times = interleaved_medians(
        {name: loop.step for name, loop in loops.items()},
        {name: loop.finish for name, loop in loops.items()},
        rounds,
        steps,
    )
    return {name: [1e3 * times[name], loop.sent() / MIB, loop.moments() / MIB] for name, loop in loops.items()}


def in_a_worker(rounds: int, steps: int, width: int) -> dict[str, list[float]]:
    return measured(rx.MultiWorkerMirroredStrategy, rounds, steps, width)


def show(title: str, tag: str, found: dict[str, list[float]]) -> None:
    [time, bytes_sent, moments] = found["whole update"]
    rows = [
        (name, f"{ms:.2f} ms", f"{ms / time:.2f}", f"{sent:.2f} MiB", f"{sent / bytes_sent:.3f}", f"{held:.2f} MiB")
        for name, (ms, sent, held) in found.items()
    ]
    print_table(title, ("option", "a step", "ratio", "sent", "ratio", "Adam's moments"), rows)
    for name, (ms, sent, held) in found.items():
        label = name.replace(" ", "_")
        print(f"RESULT {tag}_{label}_time {ms / time:.3f}")
        print(f"RESULT {tag}_{label}_bytes {sent / bytes_sent:.4f}")
        print(f"RESULT {tag}_{label}_moments {held / moments:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--width", type=int, default=700)
    args = parser.parse_args()
    sizes = {"rounds": args.rounds, "steps": args.steps, "width": args.width}
    # The processes first: they have the cores to themselves.
    from replicax.testing import run_workers

    found = run_workers(in_a_worker, workers=2, devices=1, timeout=250, **sizes)
    show("2 processes of one device", "workers2", found[0])
    rx.config.set_virtual_devices(8)
    show("8 virtual devices of one process", "devices8", measured(rx.MirroredStrategy, **sizes))


if __name__ == "__main__":
    main()
