"""The demo itself: trains on all devices and on one, and shows that the losses are the same."""

from __future__ import annotations

import itertools
import shutil
import sys
import time
from pathlib import Path
from typing import SupportsFloat

import jax
from rich.console import Console

import replicax as rx
from replicax.cli import report
from replicax.cli.at_work import at_work
from replicax.cli.datasets import Dataset
from replicax.cli.training import Epoch, Settings, Training, count_batches, layer_sizes

_NO_PICTURE = "Drew no curves: matplotlib is not installed: pip install matplotlib."
_QUICK_START = "https://replicax.github.io/replicax/quickstart"


def compare(console: Console, dataset: Dataset, settings: Settings, picture: Path, results: bool) -> None:
    """Trains under `MirroredStrategy` and `OneDeviceStrategy`, shows both, and draws a PNG in a folder that exists."""
    strategy = rx.MirroredStrategy()
    one_device = rx.OneDeviceStrategy(strategy.devices[0])
    network = "-".join(map(str, layer_sizes(dataset.pixels)))
    _introduce(console, dataset, network, settings, strategy)
    # GPUs and TPUs round the factors of a matrix product by default, which would hide whether the losses agree.
    with jax.enable_x64(settings.dtype == "float64"), jax.default_matmul_precision("float32"):
        distributed, seconds = _train(console, strategy, dataset, settings, verbose=True)
        single, seconds_alone = _train(console, one_device, dataset, settings, verbose=False)
    console.print()

    replicas = strategy.num_replicas_in_sync
    difference = report.max_loss_difference(distributed, single)
    console.print(report.comparison_table(distributed, single, replicas))
    console.print(report.verdict(difference))
    if strategy.devices[0].platform != "cpu":  # Virtual devices share the machine's cores: times would mislead.
        on_all = f"{seconds:.1f} s on {report.count_devices(replicas)}"
        console.print(f"{on_all}, {seconds_alone:.1f} s on one, compilation included.", style="dim")
    if report.can_draw():
        report.save_curves(picture, f"{dataset.name}, network {network}", distributed, single, replicas)
        console.print(f"Wrote {picture}", markup=False, soft_wrap=True)
    else:
        console.print(_NO_PICTURE, markup=False, soft_wrap=True)
    console.print(_next(), markup=False, soft_wrap=True)
    if results:
        print(f"RESULT demo_test_accuracy {distributed[-1].testing.accuracy:.6f}")
        print(f"RESULT demo_max_loss_difference {difference:.3e}")


def _introduce(console: Console, dataset: Dataset, network: str, settings: Settings, strategy: rx.Strategy) -> None:
    rows = f"{len(dataset.train.labels)} rows to train on, {len(dataset.test.labels)} to test"
    facts = f"{rows} · network {network} · batch {settings.batch_size}"
    console.print(f"[bold]{dataset.name}[/]: {facts}", soft_wrap=True)
    console.print(f"{strategy}", markup=False, soft_wrap=True, style="dim")


def _train(
    console: Console, strategy: rx.Strategy, dataset: Dataset, settings: Settings, verbose: bool
) -> tuple[list[Epoch], float]:
    """Returns what each epoch came to, and the seconds that all took together."""
    started = time.perf_counter()
    devices = report.count_devices(strategy.num_replicas_in_sync)
    steps = settings.epochs * (count_batches(dataset.train, settings.batch_size) + 1)
    numbers = itertools.count(1)
    epochs: list[Epoch] = []
    with at_work(console, f"{devices}: making the network") as show:
        training = Training(strategy, dataset.pixels, settings)
        show(f"{devices}: compiling the step")

        def on_step(loss: SupportsFloat) -> None:
            number = next(numbers)
            show(f"{devices}: step {number}/{steps}, loss {float(loss):.4f}")

        for epoch in training.epochs(dataset, on_step):
            epochs.append(epoch)
            if verbose:
                console.print(report.epoch_line(epoch, settings.epochs), soft_wrap=True)
    return epochs, time.perf_counter() - started


def _next() -> str:
    """Returns three things to try, as they are typed here: the environment may not be active."""
    typed = Path(sys.argv[0])
    command = "replicax" if shutil.which("replicax") or typed.stem != "replicax" else str(typed)
    lines = {
        "your machine": f"{command} doctor --choose",
        "two processes": f"{command} run --workers 2 train.py",
        "your script": _QUICK_START,
    }
    width = max(map(len, lines))
    return "\n".join(["", "Next", *(f"  {purpose:{width}}  {line}" for purpose, line in lines.items())])
