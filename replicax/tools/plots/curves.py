"""Lines: losses over steps or epochs, and losses over learning rates."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np

from replicax.checks import explained
from replicax.errors import ArgumentError
from replicax.tools.plots.style import Palette, drawn, panelled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class HistoryLike(Protocol):
    """What `Model.fit` returns."""

    @property
    def history(self) -> Mapping[str, Sequence[float]]:
        """The values of each epoch, by name."""


#: Values by name, or Keras's history.
Curves: TypeAlias = Mapping[str, Sequence[float]] | HistoryLike

_DENSE = 40  # From here on points are no longer marked.
_GAP = 0.055  # The least distance between two labels, as a part of the height.


def losses(
    curves: Curves,
    *,
    title: str = "Loss",
    x_label: str = "",
    log: bool = False,
    path: str | os.PathLike[str] | None = None,
    dark: bool = False,
    axes: Axes | None = None,
) -> Figure:
    """Draws loss curves, each with its name at its end.

    Args:
        curves: A sequence of values for each name; or Keras's `History`, of which the losses are drawn.
        title: The title.
        x_label: The name of the horizontal axis; by default "epoch" for a `History`, and otherwise "step".
        log: Whether the losses' axis is logarithmic.
        path: The file to write, PNG, SVG or PDF; None to write none.
        dark: Whether the ground is dark.
        axes: Axes of matplotlib to draw on instead of a new figure.

    Returns:
        The figure; a notebook shows it.

    Raises:
        ArgumentError: There is no curve, or one has no value; matplotlib is not installed; `path` cannot be written.

    Example:
        >>> import replicax as rx
        >>> figure = rx.plots.losses({"8 devices": [2.3, 1.1, 0.7], "one device": [2.3, 1.1, 0.7]})
    """
    named, is_history = _curves(curves)
    x_label = x_label or ("epoch" if is_history else "step")

    def draw(axes: Axes, colors: Palette) -> None:
        from matplotlib.ticker import MaxNLocator

        for (_, values), color in zip(named.items(), _cycled(colors), strict=False):
            marker = "" if len(values) > _DENSE else "o"
            axes.plot(np.arange(1, len(values) + 1), values, color=color, marker=marker, markersize=4)
        if log:
            axes.set_yscale("log")
        axes.set_xlabel(x_label)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _name_at_end(axes, named, colors)

    return drawn(draw, title=title, path=path, dark=dark, axes=axes)


def history(history: Curves, *, path: str | os.PathLike[str] | None = None, dark: bool = False) -> Figure:
    """Draws what `Model.fit` returns: the losses, and beside them the metrics if there are some.

    Args:
        history: Keras's `History`, or what it has as `history`.
        path: The file to write, PNG, SVG or PDF; None to write none.
        dark: Whether the ground is dark.

    Returns:
        The figure; a notebook shows it.

    Raises:
        ArgumentError: It is no history, or has no value; matplotlib is not installed; `path` cannot be written.

    Example:
        >>> import keras, numpy as np
        >>> model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse", metrics=["mae"])
        >>> figure = rx.plots.history(model.fit(np.ones([8, 4]), np.ones([8, 1]), verbose=0))
        >>> [axes.get_title(loc="left") for axes in figure.axes]
        ['Loss', 'Metrics']
    """
    named = history if isinstance(history, Mapping) else getattr(history, "history", None)
    if not isinstance(named, Mapping):
        raise ArgumentError(f"`history` is what Model.fit returns, got {history!r:.100}.")
    panels = {
        "Loss": {name: values for name, values in named.items() if name.endswith("loss")},
        "Metrics": {name: values for name, values in named.items() if not name.endswith("loss")},
    }
    shown = {title: curves for title, curves in panels.items() if curves}
    if not shown:
        raise ArgumentError("The history has no curve: `fit` has made no epoch.")

    def draw(axes: Axes, title: str) -> None:
        losses(shown[title], title=title, x_label="epoch", dark=dark, axes=axes)

    return panelled(draw, list(shown), path=path, dark=dark)


def _curves(curves: Curves) -> tuple[dict[str, np.ndarray], bool]:
    history = getattr(curves, "history", None)
    is_history = isinstance(history, Mapping)
    given = history if is_history else curves
    if not isinstance(given, Mapping):
        raise ArgumentError(f"Curves are a dict of values by name, or a Keras History, got {curves!r:.100}.")
    found = {
        str(name): np.asarray(values, np.float64)
        for name, values in given.items()
        if not is_history or str(name).endswith("loss")
    }
    wrong = [name for name, values in found.items() if values.ndim != 1 or not np.isfinite(values).any()]
    if wrong or not found:
        what = f"{wrong[0]!r} has none" if wrong else f"there is no curve in {list(given)}"
        raise ArgumentError(f"Each curve is a sequence of numbers, at least one of them finite: {what}.")
    return found, is_history


def _cycled(colors: Palette) -> list[str]:
    return [*colors.series] * 20


def _name_at_end(axes: Axes, named: Mapping[str, np.ndarray], colors: Palette) -> None:
    """Writes each curve's name beside its last value; names that would touch are moved apart."""
    axes.autoscale_view()  # Or the labels would be placed by the limits of an empty plot.
    to_part = axes.transData + axes.transAxes.inverted()
    lasts = []
    for (name, values), color in zip(named.items(), _cycled(colors), strict=False):
        last = int(np.flatnonzero(np.isfinite(values))[-1])
        lasts.append((float(to_part.transform((last + 1, values[last]))[1]), name, color))
    lasts.sort()
    placed = apart([height for height, *_ in lasts], _GAP)
    for height, (_, name, color) in zip(placed, lasts, strict=True):
        axes.annotate(
            name,
            (1, height),
            (8, 0),
            xycoords="axes fraction",
            textcoords="offset points",
            va="center",
            color=color,
            fontweight="bold",
            fontsize=9,
            annotation_clip=False,
        )


def apart(heights: Sequence[float], gap: float) -> list[float]:
    """Returns ascending heights, moved as little as needed so that neighbours are `gap` apart.

    Example:
        >>> apart([0.0, 0.5, 0.5], 0.25)
        [0.0, 0.375, 0.625]
    """
    groups: list[list[float]] = []  # Of neighbours that would touch: the mean of their heights, and how many they are.
    for height in heights:
        groups.append([height, 1])
        while len(groups) > 1 and groups[-1][0] - groups[-2][0] < gap * (groups[-1][1] + groups[-2][1]) / 2:
            mean, count = groups.pop()
            below, others = groups[-1]
            groups[-1] = [(mean * count + below * others) / (count + others), count + others]
    return [mean + gap * (i - (count - 1) / 2) for mean, count in groups for i in range(int(count))]


@explained
def learning_rates(
    rates: Sequence[float],
    values: Sequence[float],
    smoothed: Sequence[float],
    suggestion: float | None = None,
    *,
    title: str = "Loss over the learning rate",
    path: str | os.PathLike[str] | None = None,
    dark: bool = False,
    axes: Axes | None = None,
) -> Figure:
    """Draws the outcome of a learning-rate range test; `rx.tuning.find_learning_rate(...).plot()` calls it.

    Args:
        rates: The learning rate of each step.
        values: The loss of each step.
        smoothed: The smoothed losses.
        suggestion: The learning rate to mark, or None.
        title: The title.
        path: The file to write, PNG, SVG or PDF; None to write none.
        dark: Whether the ground is dark.
        axes: Axes of matplotlib to draw on instead of a new figure.

    Raises:
        ArgumentError: The sequences are empty or differ in length; matplotlib is not installed; `path` cannot be
            written.

    Example:
        >>> import replicax as rx
        >>> figure = rx.plots.learning_rates([1e-3, 1e-2, 1e-1], [2.3, 1.9, 4.0], [2.3, 2.1, 2.8], 1e-2)
    """
    if not len(rates) == len(values) == len(smoothed) or not len(rates):
        raise ArgumentError(
            "Learning rates, losses and smoothed losses are three sequences of one length, got "
            f"{len(rates)}, {len(values)} and {len(smoothed)}."
        )

    def draw(axes: Axes, colors: Palette) -> None:
        axes.plot(rates, values, color=colors.quiet, linewidth=1.2, label="loss of a step")
        axes.plot(rates, smoothed, color=colors.series[0], label="smoothed")
        axes.set_xscale("log")
        axes.set_xlabel("learning rate")
        axes.grid(True, axis="x")
        # A loss that diverges would press all others together.
        curve = np.asarray(smoothed, np.float64)
        curve = curve[np.isfinite(curve)]
        low, begun = float(curve.min()), float(curve[0])
        top = min(float(curve.max()), begun + 0.7 * (begun - low))
        if low < top:
            axes.set_ylim(low - 0.08 * (top - low), top + 0.12 * (top - low))
        if suggestion is not None:
            at = float(np.interp(np.log(suggestion), np.log(rates), smoothed))
            axes.axvline(suggestion, color=colors.series[1], linewidth=1.2, linestyle=(0, (4, 3)))
            axes.plot([suggestion], [at], "o", color=colors.series[1], markersize=7, markeredgecolor=colors.ground)
            axes.annotate(
                f"{suggestion:.2g}",
                (suggestion, at),
                (9, 7),
                textcoords="offset points",
                color=colors.series[1],
                fontweight="bold",
            )
        axes.legend(loc="lower left")

    return drawn(draw, title=title, path=path, dark=dark, axes=axes)
