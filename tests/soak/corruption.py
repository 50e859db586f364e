"""Flips bits in a checkpoint and cuts its files off: each time it must be refused, or restore what was written.

Run it by hand; the tests run a short form:

    python tests/soak/corruption.py --damages 500

Each round damages one file of a copy of a checkpoint (or two at once), among them the metadata and the states, and
restores it into objects that hold other values. A restore that fails must be a `CheckpointError` and must leave all
objects as they were; one that succeeds must give what was written. Then the same for functions of `rx.export`.
"""

from __future__ import annotations

import argparse
import functools
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import replicax as rx
from replicax.errors import CheckpointError, ExportError

_REFUSALS = (CheckpointError, ExportError)


class Training:
    """Objects of all kinds, with values that follow from a number."""

    def __init__(self, number: float):
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("x",))
        self.weight = rx.Variable(jnp.full((16, 8), number), name="weight")
        self.random = np.random.default_rng(int(number))
        sharded = jax.device_put(jnp.arange(64.0) + number, NamedSharding(mesh, PartitionSpec("x")))
        values = {"sharded": sharded, "half": jnp.full(5, number, jnp.bfloat16), "flags": np.array([True, False])}
        self.checkpoint = rx.Checkpoint(
            w=self.weight, rng=self.random, values=values, step=int(number), name=f"{number}"
        )

    def state(self) -> dict[str, Any]:
        """Returns all values, to be compared."""
        values = {name: np.asarray(x, np.float32).tolist() for name, x in self.checkpoint.objects["values"].items()}
        others = {name: self.checkpoint.objects[name] for name in ("step", "name")}
        return {**values, **others, "w": self.weight.numpy().tolist(), "rng": self.random.bit_generator.state}


def export(directory: Path) -> np.ndarray:
    """Exports a function of a variable; returns what it gives for ones."""
    weight = rx.Variable(jnp.arange(6.0).reshape(2, 3), name="weight")
    function = rx.function(lambda x: x @ weight.value)
    rx.export(function, directory, jnp.ones((4, 2)))
    return np.asarray(function(jnp.ones((4, 2))))


def called(directory: Path, into: list[Any]) -> None:
    """Loads an exported function and appends what it gives for ones."""
    into.append(np.asarray(rx.load_export(directory)(jnp.ones((4, 2)))).tolist())


def damage(directory: Path, rng: random.Random, log: list[str]) -> None:
    """Flips a bit of one file, or some; or cuts it off, empties it, or makes it longer."""
    file = rng.choice(sorted(path for path in directory.rglob("*") if path.is_file()))
    contents = bytearray(file.read_bytes())
    kind = rng.choice(["bit", "bit", "bit", "bits", "cut", "empty", "longer"])
    if kind in ("bit", "bits") and contents:
        for _ in range(1 if kind == "bit" else rng.randint(2, 20)):
            contents[rng.randrange(len(contents))] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del contents[rng.randrange(len(contents) + 1) :]
    elif kind == "empty":
        contents.clear()
    else:
        contents += bytes(rng.randrange(256) for _ in range(rng.randint(1, 9)))
    log.append(f"{kind} in {file.relative_to(directory)}")
    file.write_bytes(contents)


class Count:
    """What came of all damages.

    Attributes:
        silent: Restores that gave something else than was written, or left half of it after an error.
        raw: Errors that are none of replicax's.
        refused: Those that are.
    """

    def __init__(self) -> None:
        self.silent = self.raw = self.refused = 0

    def judge(
        self,
        log: list[str],
        restore: Callable[[Path], Any],
        path: Path,
        written: Any,
        before: Any,
        after: Callable[[], Any],
    ) -> None:
        """Restores once and counts what came of it."""
        what = ", ".join(log)
        try:
            restore(path)
        except _REFUSALS:
            self.refused += 1
            expected = before
        except Exception as error:
            self.raw += 1
            print(f"{what}: {type(error).__name__}: {error}", flush=True)
            return
        else:
            expected = written
        if after() != expected:
            self.silent += 1
            print(f"{what}: silent", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--damages", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rx.config.set_virtual_devices(4)
    rng, count = random.Random(options.seed), Count()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        source = Training(1.0)
        written, other = source.state(), Training(2.0).state()
        source.checkpoint.write(root / "checkpoint")
        result = export(root / "function").tolist()
        for i in range(options.damages):
            name = "function" if i % 5 == 4 else "checkpoint"
            copy, log = root / "copy", [f"damage {i}, {name}"]
            shutil.copytree(root / name, copy)
            for _ in range(1 + (i % 7 == 0)):
                damage(copy, rng, log)
            if name == "checkpoint":
                target = Training(2.0)
                count.judge(log, target.checkpoint.restore, copy, written, other, target.state)
            else:
                found: list[Any] = []
                call = functools.partial(called, into=found)
                count.judge(log, call, copy, [result], [], functools.partial(list, found))
            shutil.rmtree(copy)
    print(f"{options.damages} damages, {count.refused} refused, the others restored what was written")
    print(f"RESULT silent_corruptions {count.silent}")
    print(f"RESULT raw_errors {count.raw}")
    return int(bool(count.silent or count.raw))


if __name__ == "__main__":
    sys.exit(main())
