"""The demo's output: a line for each epoch, a table and a picture."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich import box
from rich.table import Table

from replicax.cli.training import Epoch
from replicax.tools.plots.style import LIGHT, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TOLERANCE = 1e-5  # the largest difference between the losses of two trainings that agree
PHASES = ("training", "testing")  # of an epoch

_COLORS = LIGHT.series[:2]  # of the phases
_INK, _GRAY = LIGHT.ink, LIGHT.text
_TOP = 0.94  # height of the title and the legend
_LINE: dict[str, Any] = {"linewidth": 2.2, "marker": "o", "markersize": 4}
_RING: dict[str, Any] = {
    "linestyle": "none",
    "marker": "o",
    "markersize": 10,
    "markerfacecolor": "none",
    "markeredgewidth": 1.4,
}


def count_devices(devices: int) -> str:
    """Returns "8 devices", or "one device"."""
    return "one device" if devices == 1 else f"{devices} devices"


def epoch_line(epoch: Epoch, epochs: int) -> str:
    """Returns the line with the scores of an epoch."""
    parts = [f"epoch {epoch.number:>{len(str(epochs))}}/{epochs}"]
    for phase in PHASES:
        loss, accuracy = getattr(epoch, phase)
        parts.append(f"{phase} loss {loss:.3f} accuracy {accuracy:.3f}")
    return "  ".join(parts)


def max_loss_difference(distributed: Sequence[Epoch], single: Sequence[Epoch]) -> float:
    """Returns the largest difference between the losses of two trainings in any epoch; NaN if a loss is NaN."""
    many, one = (
        [getattr(epoch, phase).loss for epoch in epochs for phase in PHASES] for epochs in (distributed, single)
    )
    return float(np.max(np.abs(np.subtract(many, one))))


def comparison_table(distributed: Sequence[Epoch], single: Sequence[Epoch], devices: int) -> Table:
    """Returns a table of each epoch's losses on all devices, on one, and their difference."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, header_style="")
    table.add_column("\nepoch", justify="right")
    for phase in PHASES:
        table.add_column(f"{phase} loss\n{count_devices(devices)}", justify="right")
        table.add_column("\none device", justify="right")
    table.add_column("largest\ndifference", justify="right")
    for many, one in zip(distributed, single, strict=True):
        losses = [getattr(epoch, phase).loss for phase in PHASES for epoch in (many, one)]
        difference = max_loss_difference([many], [one])
        table.add_row(str(many.number), *(f"{loss:.7f}" for loss in losses), f"{difference:.1e}")
    return table


def verdict(difference: float) -> str:
    """Returns a summary of the comparison."""
    if difference <= TOLERANCE:
        return f"[green]✓[/] The losses agree: they differ by {difference:.1e} at most."
    if math.isnan(difference):
        return "[red]✗[/] The losses are NaN: the training has diverged."
    return (
        f"[yellow]![/] The losses differ by up to {difference:.1e}. Devices that share a batch add in another order "
        "than one device with the whole batch, and round differently. Over many steps this can switch a unit of the "
        "network on in one training and off in the other; then they drift apart. With --dtype float64 they agree."
    )


def can_draw() -> bool:
    """Returns whether matplotlib, which draws the curves, is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def save_curves(path: Path, title: str, distributed: Sequence[Epoch], single: Sequence[Epoch], devices: int) -> None:
    """Draws loss and accuracy over the epochs as a PNG: lines for all devices, rings for one device."""
    from matplotlib.figure import Figure

    with style():
        figure = Figure(figsize=(10, 4.6), dpi=150)
        figure.set_layout_engine("none")  # The panels have their places.
        loss, accuracy = figure.subplots(
            1, 2, gridspec_kw={"left": 0.05, "right": 0.975, "bottom": 0.115, "top": 0.81, "wspace": 0.16}
        )
        for axes, measure in ((loss, "loss"), (accuracy, "accuracy")):
            _draw_panel(axes, measure, distributed, single)
        loss.set_ylim(bottom=0)
        accuracy.set_ylim(top=1)
        figure.text(0.018, _TOP, title, va="center", fontsize=13, fontweight="bold", color=_INK)
        _draw_legend(figure, count_devices(devices))
        figure.savefig(path)


def _draw_panel(axes: Axes, measure: str, distributed: Sequence[Epoch], single: Sequence[Epoch]) -> None:
    from matplotlib.ticker import MaxNLocator

    numbers = [epoch.number for epoch in distributed]
    for phase, color in zip(PHASES, _COLORS, strict=True):
        many, one = ([getattr(getattr(epoch, phase), measure) for epoch in epochs] for epochs in (distributed, single))
        axes.plot(numbers, many, color=color, **_LINE)
        axes.plot(numbers, one, color=color, **_RING)
    axes.set_title(measure.capitalize(), fontweight="normal", pad=6)
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _draw_legend(figure: Figure, devices: str) -> None:
    """Draws an entry for each phase, by its colour, and for each number of devices, by its shape."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    phases = [Patch(color=color, label=phase) for phase, color in zip(PHASES, _COLORS, strict=True)]
    shapes = [
        Line2D([], [], color=_GRAY, label=devices, **_LINE),
        Line2D([], [], color=_GRAY, label="one device", **_RING),
    ]
    figure.legend(
        handles=[*phases, *shapes],
        loc="center right",
        bbox_to_anchor=(0.985, _TOP),
        ncols=4,
        frameon=False,
        fontsize=10,
        labelcolor=_INK,
        handlelength=1.6,
        handleheight=0.8,
        columnspacing=1.6,
    )
