"""The look of all plots: colours that people of all kinds of sight tell apart, on light and on dark ground."""

from __future__ import annotations

import contextlib
import functools
import io
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from replicax.errors import ArgumentError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Those of Okabe and Ito (2008), https://jfly.uni-koeln.de, in the order in which plots take them: blue,
#: vermilion, bluish green, reddish purple, orange, sky blue.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
#: The same hues, lighter, for dark ground.
DARK_COLORS = ("#56b4e9", "#f5874f", "#2fc99b", "#e3a3c8", "#f0b13c", "#9bd3f5")

#: Small and even figures: inches, and pixels an inch of a PNG.
SIZE, DPI = (7.2, 3.8), 160
_LEGEND_COLUMNS, _LEGEND_ROW, _PAD_WITH_LEGEND = 6, 14, 28  # the last two: points


class Palette(NamedTuple):
    """The colours of a plot."""

    series: tuple[str, ...]  # lines and bars, in their order
    ink: str  # titles
    text: str  # labels
    line: str  # axes
    grid: str
    ground: str  # the background
    quiet: str  # what is there but matters less
    alarm: str  # what went wrong


LIGHT = Palette(COLORS, "#1b2733", "#51606d", "#b8c2cb", "#e9edf0", "#ffffff", "#c9dbe8", "#c0271d")
DARK = Palette(DARK_COLORS, "#eef2f6", "#b4c0cb", "#566573", "#2c3742", "#161d25", "#38536a", "#ff8a7a")


def palette(dark: bool = False) -> Palette:
    """Returns the colours for light or dark ground."""
    return DARK if dark else LIGHT


@contextlib.contextmanager
def style(dark: bool = False) -> Iterator[Palette]:
    """Gives matplotlib the look of these plots inside a `with` block, for plots of your own.

    Args:
        dark: Whether the ground is dark.

    Yields:
        The colours.

    Raises:
        ArgumentError: matplotlib is not installed.

    Example:
        >>> import replicax as rx
        >>> from matplotlib.figure import Figure
        >>> with rx.plots.style() as colors:
        ...     line, = Figure().subplots().plot([1, 2, 4])
        >>> line.get_color() == rx.plots.COLORS[0] == colors.series[0]
        True
    """
    try:
        import matplotlib
        from matplotlib import rcsetup
    except ImportError as error:
        raise ArgumentError(
            f"Plots are drawn with matplotlib, which cannot be imported ({error}). Install it: pip install "
            "'replicax[plots]'."
        ) from error
    colors = palette(dark)
    look: dict[Any, Any] = {
        "figure.facecolor": colors.ground,
        "figure.dpi": DPI,
        "figure.constrained_layout.use": True,
        "figure.constrained_layout.w_pad": 0.14,
        "figure.constrained_layout.h_pad": 0.12,
        "savefig.facecolor": colors.ground,
        "savefig.dpi": DPI,
        "axes.facecolor": colors.ground,
        "axes.edgecolor": colors.line,
        "axes.labelcolor": colors.text,
        "axes.titlecolor": colors.ink,
        "axes.titlelocation": "left",
        "axes.titlesize": 11.5,
        "axes.titleweight": "bold",
        "axes.titlepad": 12,
        "axes.labelsize": 9.5,
        "axes.axisbelow": True,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "axes.spines.left": False,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.prop_cycle": rcsetup.cycler(color=list(colors.series)),
        "grid.color": colors.grid,
        "grid.linewidth": 0.9,
        "lines.linewidth": 2.0,
        "lines.solid_capstyle": "round",
        "xtick.color": colors.line,
        "ytick.color": colors.line,
        "xtick.labelcolor": colors.text,
        "ytick.labelcolor": colors.text,
        "xtick.labelsize": 9,
        "ytick.labelsize": 9,
        "ytick.major.size": 0,
        "ytick.minor.size": 0,
        "xtick.minor.size": 0,
        "xtick.major.size": 3,
        "text.color": colors.ink,
        "legend.frameon": False,
        "legend.fontsize": 9,
        "legend.labelcolor": colors.text,
        "font.family": "DejaVu Sans",
        "font.size": 9.5,
        "svg.hashsalt": "replicax",  # The same plot is the same file.
    }
    with matplotlib.rc_context(look):
        yield colors


def drawn(
    draw: Callable[[Axes, Palette], None],
    *,
    title: str,
    path: str | os.PathLike[str] | None,
    dark: bool,
    axes: Axes | None = None,
    size: tuple[float, float] = SIZE,
) -> Figure:
    """Returns a figure that `draw` has drawn, on the user's `axes` if there are some; writes it if there is a path."""
    with style(dark) as colors:
        if axes is None:
            axes = _new_figure(size).subplots()
        figure = axes.get_figure(root=True)
        assert figure is not None
        axes.set_title(title)
        draw(axes, colors)
        if path is not None:
            _write(figure, Path(path))
        return figure


def panelled(
    draw: Callable[[Axes, str], None], titles: Sequence[str], *, path: str | os.PathLike[str] | None, dark: bool
) -> Figure:
    """Returns a figure with a panel for each title, side by side, which `draw` has drawn; writes it to a path."""
    with style(dark):
        figure = _new_figure((SIZE[0] * (1 + 0.6 * (len(titles) - 1)), SIZE[1]))
        for axes, title in zip(figure.subplots(1, len(titles), squeeze=False)[0], titles, strict=True):
            draw(axes, title)
        if path is not None:
            _write(figure, Path(path))
        return figure


def _new_figure(size: tuple[float, float]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=size)
    # pyplot would have to be imported first, or a notebook would show the figure's name alone.
    setattr(figure, "_repr_png_", functools.partial(_in_a_notebook, figure))  # noqa: B010
    return figure


def _in_a_notebook(figure: Figure) -> tuple[bytes, dict[str, int]]:
    """Returns a figure as PNG, and how wide it is shown: with two pixels for each of the page."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=DPI, facecolor=figure.get_facecolor())
    return picture.getvalue(), {"width": round(figure.get_figwidth() * DPI / 2)}


def _write(figure: Figure, path: Path) -> None:
    metadata = {"Date": None} if path.suffix == ".svg" else None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata=metadata)
    except (OSError, ValueError) as error:
        raise ArgumentError(
            f"The plot cannot be written to {str(path)!r}: {error}. Give a path that ends with .png, .svg or .pdf, in "
            "a folder that this process may write to."
        ) from error


def legend_above(axes: Axes, **arguments: object) -> None:
    """Puts the legend between the title and the plot: in one row if it has six entries."""
    legend = axes.legend(
        loc="lower left", bbox_to_anchor=(0, 1.0), ncols=_LEGEND_COLUMNS, borderaxespad=0, borderpad=0.2,
        handlelength=1.0, columnspacing=1.6, **arguments,
    )  # fmt: skip
    more_rows = (len(legend.get_texts()) - 1) // _LEGEND_COLUMNS
    axes.set_title(axes.get_title(loc="left"), pad=_PAD_WITH_LEGEND + more_rows * _LEGEND_ROW)


def with_unit(num_bytes: float) -> str:
    """Returns a size in words.

    Example:
        >>> with_unit(0), with_unit(1536), with_unit(5 * 2**20)
        ('0 B', '1.5 KiB', '5 MiB')
    """
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    size, unit = float(num_bytes), 0
    while size >= 1024 and unit < len(units) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.3g} {units[unit]}" if size < 999.5 else f"{size:.0f} {units[unit]}"
