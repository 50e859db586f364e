"""Bars: memory of each device, bytes that a step sends, and how stale updates were."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import jax
import numpy as np

from replicax.checks import explained
from replicax.contracts.variable_access import array_of, is_variable
from replicax.errors import ArgumentError
from replicax.tools.plots.style import Palette, drawn, legend_above, with_unit
from replicax.typing import PyTree

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class SendingLike(Protocol):
    """What `rx.dtensor.communication` returns."""

    @property
    def sent_bytes(self) -> Mapping[str, int]:
        """Bytes that one device sends, by the kind of collective."""


class StatsLike(Protocol):
    """What `coordinator.stats()` returns."""

    @property
    def staleness(self) -> Mapping[int, int]:
        """How many updates were so many versions behind."""


Sending: TypeAlias = SendingLike | Mapping[str, int]


def memory_per_device(
    parts: Mapping[str, PyTree] | PyTree,
    *,
    title: str = "Memory of each device",
    path: str | os.PathLike[str] | None = None,
    dark: bool = False,
    axes: Axes | None = None,
) -> Figure:
    """Draws how many bytes of variables and arrays each device of this process holds.

    Args:
        parts: By name, what to count: a Keras model or optimizer, an `rx.Module`, variables, or a pytree of arrays;
            one bar of a device is stacked of them, in their order. Or one of these alone.
        title: The title.
        path: The file to write, PNG, SVG or PDF; None to write none.
        dark: Whether the ground is dark.
        axes: Axes of matplotlib to draw on instead of a new figure.

    Raises:
        ArgumentError: There is no array in it; matplotlib is not installed; `path` cannot be written.

    Example:
        >>> import replicax as rx
        >>> with rx.MirroredStrategy().scope():
        ...     weight = rx.Variable([1.0] * 256)
        >>> figure = rx.plots.memory_per_device({"weights": [weight]})
    """
    has_names = isinstance(parts, Mapping) and all(isinstance(name, str) for name in parts)
    counted = {str(name): bytes_of_devices(part) for name, part in (parts if has_names else {"": parts}).items()}
    devices = sorted({device for each in counted.values() for device in each}, key=lambda device: device.id)
    if not devices:
        raise ArgumentError(f"There is no array on a device of this process in {parts!r:.100}.")
    labels = [f"{device.platform}:{device.id}" for device in devices]
    series = {name: [each.get(device, 0) for device in devices] for name, each in counted.items()}
    return _stacked(labels, series, title, "", path, dark, axes)


def bytes_of_devices(part: PyTree) -> dict[jax.Device, int]:
    """Returns how many bytes each device of this process holds of variables and arrays."""
    found: dict[jax.Device, int] = {}
    variables = getattr(part, "variables", part)
    leaves = jax.tree_util.tree_leaves(variables, is_leaf=is_variable)
    for leaf in leaves:
        array = array_of(leaf) if is_variable(leaf) else leaf
        for shard in getattr(array, "addressable_shards", ()):
            found[shard.device] = found.get(shard.device, 0) + int(shard.data.nbytes)
    return found


def bytes_per_step(
    steps: Mapping[str, Sending],
    *,
    title: str = "Bytes that a device sends in a step",
    path: str | os.PathLike[str] | None = None,
    dark: bool = False,
    axes: Axes | None = None,
) -> Figure:
    """Draws what a step sends, a bar for each step, stacked of the kinds of collectives.

    Args:
        steps: By name, what `rx.dtensor.communication` has returned for a step, or bytes by kind.
        title: The title.
        path: The file to write, PNG, SVG or PDF; None to write none.
        dark: Whether the ground is dark.
        axes: Axes of matplotlib to draw on instead of a new figure.

    Raises:
        ArgumentError: There is no step; matplotlib is not installed; `path` cannot be written.

    Example:
        >>> import replicax as rx
        >>> figure = rx.plots.bytes_per_step({"float32": {"all-reduce": 4096}, "int8": {"all-reduce": 1024}})
    """
    if not isinstance(steps, Mapping) or not steps:
        raise ArgumentError(f"Steps are a dict of communication reports by name, got {steps!r:.100}.")
    sent = {name: each if isinstance(each, Mapping) else each.sent_bytes for name, each in steps.items()}
    kinds = list(dict.fromkeys(kind for each in sent.values() for kind in each)) or ["nothing"]
    series = {kind: [int(each.get(kind, 0)) for each in sent.values()] for kind in kinds}
    return _stacked(list(sent), series, title, "", path, dark, axes)


def _stacked(
    labels: Sequence[str],
    series: Mapping[str, Sequence[int]],
    title: str,
    y_label: str,
    path: str | os.PathLike[str] | None,
    dark: bool,
    axes: Axes | None,
) -> Figure:
    totals = np.sum(list(series.values()), axis=0)

    def draw(axes: Axes, colors: Palette) -> None:
        from matplotlib.ticker import FuncFormatter

        at, below = np.arange(len(labels)), np.zeros(len(labels))
        for (name, sizes), color in zip(series.items(), [*colors.series] * 10, strict=False):
            axes.bar(at, sizes, 0.68, below, color=color, label=name or None, edgecolor=colors.ground, linewidth=0.8)
            below += np.asarray(sizes)
        few = len(labels) <= 12
        for x, total in zip(at, totals, strict=True) if few else ():
            axes.annotate(
                with_unit(total), (x, total), (0, 4), textcoords="offset points", ha="center", fontsize=8.5,
                color=colors.text,
            )  # fmt: skip
        axes.set_xticks(at, labels)
        axes.tick_params(axis="x", length=0)
        axes.yaxis.set_major_locator(_binary_ticks(float(max(totals))))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda size, _: with_unit(size)))
        axes.set_ylim(0, max(float(max(totals)), 1) * 1.14)
        axes.set_ylabel(y_label)
        if any(series):
            legend_above(axes)

    return drawn(draw, title=title, path=path, dark=dark, axes=axes)


def _binary_ticks(most: float) -> Any:
    """Returns ticks at even sizes: halves and quarters of powers of two."""
    from matplotlib.ticker import MultipleLocator

    step = 2.0 ** np.floor(np.log2(max(most, 4) / 4))
    return MultipleLocator(step * (2 if most / step > 6 else 1))


@explained
def staleness(
    stats: StatsLike | Mapping[int, int],
    *,
    title: str = "Staleness of updates",
    path: str | os.PathLike[str] | None = None,
    dark: bool = False,
    axes: Axes | None = None,
) -> Figure:
    """Draws how many updates of an asynchronous training were how many versions behind.

    Args:
        stats: `coordinator.stats()`, or numbers of updates by how far they were behind.
        title: The title.
        path: The file to write, PNG, SVG or PDF; None to write none.
        dark: Whether the ground is dark.
        axes: Axes of matplotlib to draw on instead of a new figure.

    Raises:
        ArgumentError: There was no update; matplotlib is not installed; `path` cannot be written.

    Example:
        >>> import replicax as rx
        >>> figure = rx.plots.staleness({0: 120, 1: 310, 2: 45})
    """
    counts = stats if isinstance(stats, Mapping) else stats.staleness
    if not counts or sum(counts.values()) == 0:
        raise ArgumentError("There was no update yet whose staleness could be drawn.")
    behind = np.arange(max(counts) + 1)
    updates = np.array([counts.get(int(each), 0) for each in behind])
    mean = float((behind * updates).sum() / updates.sum())

    def draw(axes: Axes, colors: Palette) -> None:
        from matplotlib.ticker import MaxNLocator

        axes.bar(behind, updates, 0.72, color=colors.series[0])
        axes.axvline(mean, color=colors.series[1], linewidth=1.2, linestyle=(0, (4, 3)))
        axes.annotate(
            f"mean {mean:.2f}", (mean, 1), (6, -2), xycoords=("data", "axes fraction"), textcoords="offset points",
            va="top", color=colors.series[1], fontweight="bold",
        )  # fmt: skip
        axes.set_xlabel("updates made since the variables were read")
        axes.set_ylabel("updates")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=16))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.tick_params(axis="x", length=0)

    return drawn(draw, title=title, path=path, dark=dark, axes=axes)
