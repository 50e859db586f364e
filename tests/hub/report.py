"""KerasHub's models under replicax, each beside the same model on one device: `python tests/hub/report.py [NAME ...]`.

Each backbone of `backbones.py` is saved as a preset. Then, on 8 virtual devices and on 2 processes of 4, its weights
are loaded in the scope of a strategy, three steps of `fit` and three of a loop are trained (with LoRA where KerasHub
knows the layers), and `generate` is called. The losses are to be those of one device, of plain Keras and JAX, within
1e-5; the tokens are to be the same; each weight of the preset is to be found, bit by bit; and `explain` is to name
each variable and the rule that decided about it.

Ends with `RESULT backbones`, `RESULT backbones_exact` and `RESULT weights_unaccounted`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "jax")
sys.path.insert(0, str(Path(__file__).parents[2]))

import keras
import numpy as np

import replicax as rx
from tests.hub import training
from tests.hub.backbones import BACKBONES, BY_NAME, Backbone

DEVICES, WORKERS = 8, 2
TOLERANCE = 1e-5
MINUTES_FOR_WORKERS = 30
STRATEGIES = {
    "fully sharded": lambda: rx.FullyShardedStrategy(min_size=64),
    "layouts": lambda: rx.LayoutStrategy(mesh_shape=(2, -1), layout="auto", min_size=64),
}


@dataclass
class Told:
    """What was seen of a model in one place.

    Attributes:
        fit: The losses of `fit`.
        loop: Those of a loop.
        tokens: The tokens of `generate`.
        unaccounted: Weights that were not those of the preset.
        unexplained: Variables that `explain` leaves out, or lays out by no rule.
    """

    fit: list[float]
    loop: list[float]
    tokens: list[int]
    unaccounted: int = 0
    unexplained: int = 0


def saved(case: Backbone, folder: str) -> list[np.ndarray]:
    """Saves a new model as a preset; returns its weights."""
    keras.utils.set_random_seed(0)
    model = case.build()
    model.save_to_preset(folder)
    return [weight.numpy() for weight in model.weights]


def by_hand(case: Backbone, folder: str) -> Told:
    """Trains a model on one device, without replicax."""
    fitted, looped = case.load(folder), case.load(folder)
    losses = training.fit(case, fitted)
    training.adapt(case, looped)
    return Told(losses, training.loop_by_hand(case, looped), training.generated(case, fitted))


def under(strategy: rx.Strategy, case: Backbone, folder: str, weights: list[np.ndarray]) -> Told:
    """Trains it under a strategy, from the preset."""
    with strategy.scope():
        fitted, looped = case.load(folder), case.load(folder)
    loaded = [weight.numpy() for weight in fitted.weights]
    unaccounted = abs(len(loaded) - len(weights)) + sum(
        not np.array_equal(own, saved) for own, saved in zip(loaded, weights, strict=False)
    )
    explained = str(strategy.explain(fitted)).splitlines()
    unexplained = sum(not any(line.startswith(f"{v.path}  ") for line in explained) for v in fitted.variables)
    losses = training.fit(case, fitted)
    with strategy.scope():
        training.adapt(case, looped)
    loop = training.loop(case, looped, strategy)
    return Told(losses, loop, training.generated(case, fitted), unaccounted, unexplained)


def same(told: Told, expected: Told) -> bool:
    """Returns whether nothing differs but the last bits of losses."""
    pairs = [(told.fit, expected.fit), (told.loop, expected.loop)]
    close = all(len(a) == len(b) and np.allclose(a, b, rtol=0, atol=TOLERANCE) for a, b in pairs)
    return close and told.tokens == expected.tokens and not told.unaccounted and not told.unexplained


def difference(told: Told, expected: Told) -> str:
    pairs = [(told.fit, expected.fit), (told.loop, expected.loop)]
    losses = " ".join(f"{np.abs(np.subtract(a, b)).max():8.1e}" for a, b in pairs)
    tokens = "-" if not expected.tokens else "same" if told.tokens == expected.tokens else "DIFFER"
    return f"{losses} {tokens:>7} {told.unaccounted:8d} {told.unexplained:11d}"


def on_workers(names: list[str], strategy: str, presets: Path) -> dict[str, Told]:
    """Trains models on two processes of four devices; each reads the presets."""
    results = presets / "told.json"
    results.unlink(missing_ok=True)
    devices = str(DEVICES // WORKERS)
    job = ["-m", "replicax", "run", "--workers", str(WORKERS), "--devices-per-worker", devices]
    own = [__file__, "--of-workers", str(presets), "--strategy", strategy, *names]
    subprocess.run([sys.executable, *job, *own], check=True, timeout=60 * MINUTES_FOR_WORKERS)
    return {name: Told(**told) for name, told in json.loads(results.read_text()).items()}


def of_workers(names: list[str], strategy: rx.Strategy, presets: Path) -> None:
    """Is what each of the two processes does."""
    told = {}
    for name in names:
        weights = list(np.load(presets / f"{name}.npz").values())
        told[name] = vars(under(strategy, BY_NAME[name], str(presets / name), weights))
        print(name, "trained", flush=True)
    if strategy.is_chief:
        (presets / "told.json").write_text(json.dumps(told))


def report(names: list[str]) -> bool:
    """Trains all models everywhere and prints what differs; returns whether nothing does."""
    rx.config.set_virtual_devices(DEVICES)
    exact, unaccounted = {}, 0
    print(f"{'':30} {'fit':>8} {'loop':>8} {'tokens':>7} {'weights':>8} {'unexplained':>11}")
    with tempfile.TemporaryDirectory() as folder:
        presets = Path(folder)
        expected = {}
        for name in names:
            weights = saved(BY_NAME[name], str(presets / name))
            np.savez(presets / f"{name}.npz", *weights)
            expected[name] = by_hand(BY_NAME[name], str(presets / name))
            exact[name] = True
            for kind, make in STRATEGIES.items():
                told = under(make(), BY_NAME[name], str(presets / name), weights)
                exact[name] &= same(told, expected[name])
                unaccounted += told.unaccounted
                print(f"{name:9} {kind:20} {difference(told, expected[name])}", flush=True)
        for kind in STRATEGIES:
            for name, told in on_workers(names, kind, presets).items():
                exact[name] &= same(told, expected[name])
                unaccounted += told.unaccounted
                print(f"{name:9} {f'{kind}, 2 x 4':20} {difference(told, expected[name])}", flush=True)
    print(f"RESULT backbones {len(names)}")
    print(f"RESULT backbones_exact {sum(exact.values())}")
    print(f"RESULT weights_unaccounted {unaccounted}")
    return all(exact.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=[], help=f"of {', '.join(BY_NAME)}; by default all")
    parser.add_argument("--of-workers", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--strategy", choices=STRATEGIES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    names = args.names or [case.name for case in BACKBONES]
    if args.of_workers:
        of_workers(names, STRATEGIES[args.strategy](), args.of_workers)
    else:
        sys.exit(not report(names))


if __name__ == "__main__":
    main()
