"""What the demo shows: a progress bar, a line for each epoch, a table and a picture."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from replicax.cli.training import Epoch, Score

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TOLERANCE = 1e-5  # how far the losses of two trainings of a few epochs may lie apart
_COLORS = {"training": "#2f6db3", "testing": "#e0752d"}


@contextlib.contextmanager
def progress_bar(console: Console, title: str, steps: int) -> Iterator[Callable[[Any], None]]:
    """Shows a progress bar while the `with` block runs.

    Yields:
        A function to call after each step, with its loss.
    """
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps · loss {task.fields[loss]:.4f}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(title, total=steps, loss=float("nan"))
        yield lambda loss: progress.update(task, advance=1, loss=float(loss))


def epoch_line(epoch: Epoch, epochs: int) -> str:
    """Returns the line that tells what an epoch came to."""
    scores = "   ".join(
        f"{name} loss {score.loss:.4f} accuracy {score.accuracy:.4f}"
        for name, score in (("training", epoch.training), ("testing", epoch.testing))
    )
    return f"epoch {epoch.number:>{len(str(epochs))}}/{epochs}   {scores}"


def max_loss_difference(distributed: Sequence[Epoch], single: Sequence[Epoch]) -> float:
    """Returns how far the losses of two trainings lie apart in any epoch; NaN if one of them is NaN."""
    differences = [
        abs(many.loss - one.loss)
        for epochs in zip(distributed, single, strict=True)
        for many, one in zip(*(_scores(epoch) for epoch in epochs), strict=True)
    ]
    return float("nan") if any(d != d for d in differences) else max(differences)


def _scores(epoch: Epoch) -> tuple[Score, Score]:
    return epoch.training, epoch.testing


def comparison_table(distributed: Sequence[Epoch], single: Sequence[Epoch], devices: int) -> Table:
    """Returns a table of each epoch's losses on all devices, on one, and their difference."""
    table = Table(box=box.SIMPLE_HEAD, title="The same training on one device", title_justify="left", title_style="bold")
    table.add_column("epoch", justify="right")
    for name in ("training", "testing"):
        table.add_column(f"{name} loss\n{_count(devices)}", justify="right")
        table.add_column("\none device", justify="right")
        table.add_column("\ndifference", justify="right", style="cyan")
    for many, one in zip(distributed, single, strict=True):
        cells = []
        for all_devices, one_device in zip(_scores(many), _scores(one), strict=True):
            difference = abs(all_devices.loss - one_device.loss)
            cells += [f"{all_devices.loss:.7f}", f"{one_device.loss:.7f}", f"{difference:.1e}"]
        table.add_row(str(many.number), *cells)
    return table


def verdict(difference: float) -> str:
    """Returns the sentence that sums the comparison up."""
    if difference <= TOLERANCE:
        return f"[green]✓[/] The losses agree: they differ by {difference:.1e} at most."
    return f"[yellow]![/] The losses differ by up to {difference:.1e}, which is more than {TOLERANCE:.0e}."


def save_curves(path: Path, title: str, distributed: Sequence[Epoch], single: Sequence[Epoch], devices: int) -> None:
    """Draws loss and accuracy over the epochs as a PNG: lines for all devices, rings for one device."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.4), dpi=150, layout="constrained")
    figure.get_layout_engine().set(wspace=0.06)
    figure.suptitle(title, x=0.012, ha="left", fontsize=13, fontweight="bold", color="#222222")
    loss, accuracy = figure.subplots(1, 2)
    for axes, measure in ((loss, "loss"), (accuracy, "accuracy")):
        _draw_panel(axes, measure, distributed, single, _count(devices))
    loss.set_ylim(bottom=0)
    accuracy.set_ylim(top=1)
    loss.legend(frameon=False, fontsize=9, labelcolor="#333333")
    figure.savefig(path)


def _draw_panel(axes: Axes, measure: str, distributed: Sequence[Epoch], single: Sequence[Epoch], devices: str) -> None:
    from matplotlib.ticker import MaxNLocator

    for phase, color in _COLORS.items():
        curves = [[getattr(getattr(epoch, phase), measure) for epoch in epochs] for epochs in (distributed, single)]
        numbers = [epoch.number for epoch in distributed]
        axes.plot(numbers, curves[0], color=color, linewidth=2.2, label=f"{phase}, {devices}", marker="o", markersize=4)
        axes.plot(
            numbers, curves[1], color=color, linestyle="none", label=f"{phase}, one device", marker="o",
            markersize=10, markerfacecolor="none", markeredgewidth=1.3,
        )
    axes.set_title(measure.capitalize(), loc="left", fontsize=11, color="#333333")
    axes.set_xlabel("epoch", color="#555555")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y", color="#e6e6e6")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color("#bbbbbb")
    axes.tick_params(length=0, labelcolor="#555555")


def _count(devices: int) -> str:
    return "one device" if devices == 1 else f"{devices} devices"
