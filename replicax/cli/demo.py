"""`replicax demo`: one training on many devices and on one, compared."""

from __future__ import annotations

import enum
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import replicax as rx
from replicax.cli.at_work import at_work
from replicax.cli.datasets import DataError, Dataset, load_digits, load_mnist
from replicax.errors import DeviceError

PICTURE = "curves.png"


class Dtype(enum.StrEnum):
    """The dtype of the network."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"


class Data(enum.StrEnum):
    """The demo's datasets."""

    DIGITS = "digits"
    MNIST = "mnist"


# 1e-3 is Keras's own and suits MNIST. The digits have 36 steps in all: over five seeds 1e-3 ended at 0.92 to 0.94 test
# accuracy, 3e-3 at 0.94 to 0.95.
_LEARNING_RATES = {Data.DIGITS: 3e-3, Data.MNIST: 1e-3}


def demo(
    data: Annotated[
        Data,
        typer.Option(help="The 1797 digits of 8 x 8 pixels that come with replicax, or MNIST from --data-dir."),
    ] = Data.DIGITS,
    data_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of MNIST's four .gz files, for --data mnist.")
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, metavar="N", help="Passes over the training rows.")] = 3,
    batch_size: Annotated[
        int, typer.Option(min=1, metavar="ROWS", help="Rows in a global batch, which all devices share.")
    ] = 128,
    learning_rate: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="RATE",
            show_default="0.003; for mnist 0.001",
            help="Adam's learning rate. An epoch of the digits has only 12 steps, so they are larger than MNIST's.",
        ),
    ] = None,
    devices: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="Virtual CPU devices. If there are GPUs or TPUs, all of them are used."),
    ] = 8,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, metavar="N", help="Decides the initial weights.")] = 0,
    dtype: Annotated[
        Dtype, typer.Option(help="Arithmetic. In float64 rounding no longer shows, and long trainings agree as well.")
    ] = Dtype.FLOAT32,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="ROWS", help="Use no more rows, for training and for testing each.")
    ] = None,
    output: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the picture.")] = Path("runs/demo"),
    results: Annotated[bool, typer.Option("--results", help="End with RESULT lines, for scripts to read.")] = False,
) -> None:
    """Trains a small network on eight virtual CPU devices (or all GPUs), then on one, and compares the losses.

    The network has two hidden layers (700 and 500 units), and the optimizer is Adam. Both trainings are a custom loop
    that differs in the strategy only. With matplotlib (`replicax[plots]`), loss and accuracy are drawn, too.
    """
    dataset = _load(data, data_dir)
    if limit is not None:
        dataset = dataset.limited(limit)
    rate = _LEARNING_RATES[data] if learning_rate is None else learning_rate
    console = Console(highlight=False)
    with at_work(console, "importing JAX and Keras"):
        _prepare(devices, output)  # Only now what takes seconds: a mistake in the options is reported at once.
        from replicax.cli.comparison import compare
        from replicax.cli.training import Settings

    settings = Settings(epochs, batch_size, rate, seed, dtype.value)
    compare(console, dataset, settings, output / PICTURE, results)


def _load(data: Data, data_dir: Path | None) -> Dataset:
    if data is Data.DIGITS:
        if data_dir is not None:
            raise typer.BadParameter("It goes with --data mnist; the digits need no files.", param_hint="--data-dir")
        return load_digits()
    if data_dir is None:
        raise typer.BadParameter("--data mnist needs the folder of MNIST's four .gz files.", param_hint="--data-dir")
    try:
        return load_mnist(data_dir)
    except DataError as error:
        raise typer.BadParameter(str(error), param_hint="--data-dir") from error


def _prepare(devices: int, output: Path) -> None:
    """Prepares devices, output folder and environment, with JAX; reports what is wrong before the training."""
    backend = os.environ.setdefault("KERAS_BACKEND", "jax")
    if backend != "jax":
        raise typer.BadParameter(f"It is {backend!r}, but must be 'jax' or not set.", param_hint="KERAS_BACKEND")
    try:
        rx.config.set_virtual_devices(devices)
    except DeviceError as error:
        raise typer.BadParameter(str(error), param_hint="--devices") from error
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(f"The folder cannot be made: {error}.", param_hint="--output") from error
    if not os.access(output, os.W_OK):
        raise typer.BadParameter(f"Nothing can be written to {output}.", param_hint="--output")
