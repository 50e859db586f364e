"""The most memory that a program holds in each phase of its life, beside the plain program that does the same.

Each program is a process of its own: ours, and Keras's `fit` or a loop of `jax.jit` and optax by hand, which saves and
restores by Orbax. At the start of a phase Linux forgets the process's peak, so what is read at the end is the phase's.
It is resident memory: virtual devices are in it, and so are the interpreter and the libraries, on both sides.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import problem

KINDS = ("fit", "loop")
WIDTHS = {1: 4096, 8: 2048}
"""Of the layers, by the number of devices: each device may have a copy of all."""
STEPS = 4
NOTHING_KEPT = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""The environment of a process: what it frees goes back to the system. Otherwise glibc keeps some of it, by chance."""
OURS, PLAIN = "replicax", "plain"


def sizes_of(width: int) -> tuple[int, ...]:
    """Returns the sizes of the layers."""
    return (width // 2, width, width, width, width // 2)


def peak_bytes() -> int:
    """Returns the most resident memory since `forget_peak`."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def forget_peak() -> None:
    """Makes the memory that is held now the peak."""
    gc.collect()
    time.sleep(0.5)  # XLA's threads free what the last step needed.
    Path("/proc/self/clear_refs").write_text("5")


class Fit:
    """A Keras model that `fit` trains, in a scope."""

    def __init__(self, scope: Callable[[], Any], width: int):
        import keras

        self._scope, sizes = scope, sizes_of(width)
        self._x, self._y = problem.make_batch(problem.ROWS * STEPS, sizes[0], sizes[-1])
        with scope():
            layers = [keras.layers.Dense(size, activation="relu") for size in sizes[1:-1]]
            self.model = keras.Sequential([keras.Input(sizes[:1]), *layers, keras.layers.Dense(sizes[-1])])
            self.model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
            self.model.optimizer.build(self.model.trainable_variables)

    def train(self, steps: int) -> None:
        rows = steps * problem.ROWS
        with self._scope():
            self.model.fit(self._x[:rows], self._y[:rows], batch_size=problem.ROWS, verbose=0)

    def evaluate(self) -> None:
        with self._scope():
            self.model.evaluate(self._x, self._y, batch_size=problem.ROWS, verbose=0)

    @property
    def variables(self) -> dict[str, Any]:
        """All variables, those of the optimizer too."""
        return {f"{i:03d}": v for i, v in enumerate([*self.model.variables, *self.model.optimizer.variables])}


class PlainFit(Fit):
    """Keras alone; over several devices under its own `DataParallel`."""

    def __init__(self, devices: int, width: int):
        import jax
        import keras

        scope: Callable[[], Any] = contextlib.nullcontext
        if devices > 1:
            jax.config.update("jax_num_cpu_devices", devices)
            scope = keras.distribution.DataParallel(devices=jax.devices()).scope
        super().__init__(scope, width)

    def save(self, path: Path) -> None:
        save_by_orbax(path, {name: variable.value for name, variable in self.variables.items()})

    def restore(self, path: Path) -> None:
        restored = restore_by_orbax(path, {name: variable.value for name, variable in self.variables.items()})
        for name, variable in self.variables.items():
            variable.assign(restored[name])


class OurFit(Fit):
    """The same under `MirroredStrategy`."""

    def __init__(self, devices: int, width: int):
        import replicax as rx

        rx.config.set_virtual_devices(devices)
        super().__init__(rx.MirroredStrategy().scope, width)
        self._checkpoint = rx.Checkpoint(model=self.model)

    def save(self, path: Path) -> None:
        self._checkpoint.write(path)

    def restore(self, path: Path) -> None:
        self._checkpoint.restore(path)


class Loop:
    """Steps of a custom loop: those of a callable with its `state`, `batch` and `wait`, and the loss alone."""

    def __init__(self, step: Any, loss: Callable[[Any, Any], Any]):
        self.step, self._loss = step, loss

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
        self.step.wait()

    def evaluate(self) -> None:
        for _ in range(STEPS):
            self._loss(self.step.state[0], self.step.batch).block_until_ready()


class PlainLoop(Loop):
    """`jax.jit` and optax; over several devices with an explicit sum of gradients."""

    def __init__(self, devices: int, width: int):
        import jax

        jax.config.update("jax_num_cpu_devices", devices)
        import handwritten as hand

        sizes = sizes_of(width)
        mesh = jax.sharding.Mesh(jax.devices(), ("replica",))
        batch = hand.make_batch(hand.ROWS, sizes[0], sizes[-1])
        step = hand.HandWritten(hand.make_shard_map_step(mesh, hand.ROWS), mesh, sizes, batch)
        super().__init__(step, jax.jit(lambda params, batch: hand.loss_sum(params, *batch)))

    def save(self, path: Path) -> None:
        save_by_orbax(path, self.step.state)

    def restore(self, path: Path) -> None:
        self.step.state = restore_by_orbax(path, self.step.state)


class OurLoop(Loop):
    """The same under `MirroredStrategy`."""

    def __init__(self, devices: int, width: int):
        import handwritten as hand
        import overhead

        import replicax as rx

        rx.config.set_virtual_devices(devices)
        strategy, sizes = rx.MirroredStrategy(), sizes_of(width)
        data = [hand.make_batch(hand.ROWS, sizes[0], sizes[-1])]
        [batch] = strategy.distribute_dataset(data, rx.InputOptions(prefetch=0))

        @rx.function
        def loss(params: Any, batch: Any) -> Any:
            return strategy.reduce("sum", strategy.run(hand.loss_sum, args=(params, *batch)))

        super().__init__(overhead.OptaxLoop(strategy, batch, sizes), loss)

    def save(self, path: Path) -> None:
        import replicax as rx

        rx.Checkpoint(state=self.step.state).write(path)

    def restore(self, path: Path) -> None:
        import replicax as rx

        checkpoint = rx.Checkpoint(state=self.step.state)
        checkpoint.restore(path)
        self.step.state = checkpoint.state


def save_by_orbax(path: Path, tree: Any) -> None:
    """Saves arrays as one does without replicax."""
    import orbax.checkpoint as ocp

    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(path, tree)


def restore_by_orbax(path: Path, tree: Any) -> Any:
    """Returns them again, where those of `tree` are."""
    import orbax.checkpoint as ocp

    arguments = ocp.checkpoint_utils.construct_restore_args(tree)
    with ocp.PyTreeCheckpointer() as checkpointer:
        return checkpointer.restore(path, item=tree, restore_args=arguments)


PROGRAMS: Mapping[tuple[str, str], Callable[[int, int], Any]] = {
    ("fit", OURS): OurFit,
    ("fit", PLAIN): PlainFit,
    ("loop", OURS): OurLoop,
    ("loop", PLAIN): PlainLoop,
}


def measure(kind: str, whose: str, devices: int) -> dict[str, int]:
    """Returns the peak of each phase of a program that this process runs."""
    import jax

    peaks: dict[str, int] = {}

    @contextlib.contextmanager
    def phase(name: str) -> Iterator[None]:
        forget_peak()
        yield
        jax.block_until_ready(jax.live_arrays())
        peaks[name] = peak_bytes()

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint"
        with phase("building"):
            program = PROGRAMS[kind, whose](devices, WIDTHS[devices])
        with phase("first step"):
            program.train(1)
        with phase("steady"):
            program.train(STEPS)
        with phase("evaluating"):
            program.evaluate()
        with phase("saving"):
            program.save(path)
        with phase("restoring"):
            program.restore(path)
        with phase("going on"):
            program.train(STEPS)
    return peaks


def compare(kind: str, devices: int, rounds: int) -> tuple[list[tuple[str, ...]], dict[str, float]]:
    """Returns the rows of a table, and for each phase the median ratio of neighbouring processes."""
    found: dict[str, list[dict[str, int]]] = {OURS: [], PLAIN: []}
    for _ in range(rounds):
        for whose, each in found.items():
            command = [sys.executable, __file__, kind, whose, str(devices)]
            environment = {**os.environ, **NOTHING_KEPT}
            environment.pop("NPROC", None)  # This process may have told XLA to have threads for eight devices.
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True, timeout=600)
            each.append(json.loads(done.stdout.splitlines()[-1]))
    ratios = {
        name: statistics.median(a[name] / b[name] for a, b in zip(found[OURS], found[PLAIN], strict=True))
        for name in found[OURS][0]
    }
    rows = []
    for name, ratio in ratios.items():
        mib = [f"{statistics.median(peaks[name] for peaks in each) / 2**20:.0f}" for each in found.values()]
        rows.append((name, *mib, f"{ratio:.3f}"))
    return rows, ratios


def main() -> None:
    """Runs one program, and prints its peaks as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("whose", choices=(OURS, PLAIN))
    parser.add_argument("devices", type=int, choices=tuple(WIDTHS))
    options = parser.parse_args()
    print(json.dumps(measure(options.kind, options.whose, options.devices)))


if __name__ == "__main__":
    main()
