"""Pictures of layouts: which device holds which shard of a tensor, for terminals and notebooks."""

from __future__ import annotations

import dataclasses
import io
import itertools
import shutil
from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

import jax
from rich import box
from rich.align import Align
from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

# Light, so that dark text can be read on all of them. (Tol's "light" colours and some between them.)
_COLOURS = (
    "#99ddff", "#ffaabb", "#bbcc33", "#eedd88", "#77aadd", "#ee8866", "#44bb99", "#ddbbee", "#cccc66", "#dddddd",
)  # fmt: skip
_INK = "#1a1a1a"
_GAP = -1  # stands for the shards that are left out of a long row
_MOST_PARTS = 10
_MOST_RUNS = 5


class Axis(NamedTuple):
    """A dimension of the tensor."""

    position: int
    name: str  # of the mesh dimensions that shard it, joined by "+"; empty if none does
    parts: int  # number of shards
    length: int | None  # None if the picture is not of a certain tensor

    def shown(self, most: int) -> list[int]:
        """Returns the shards to draw: all of them, or if there are more than `most`, those at both ends and a gap."""
        parts = list(range(self.parts))
        return parts if self.parts <= most else [*parts[: most - 2], _GAP, parts[-1]]

    def heading(self, part: int) -> list[str]:
        """Returns the words at a row or column: which shard it is, and its indices."""
        if part == _GAP:
            return ["…"]
        words = [f"{self.name}={part}"] if self.name else []
        if self.length is not None:
            step = self.length // self.parts
            words.append(f"{part * step}:{(part + 1) * step}")
        return words


_NO_AXIS = Axis(-1, "", 1, None)


class Cell(NamedTuple):
    """A shard of the tensor: the devices that hold it, and the colour of that group; None for a gap."""

    label: str
    colour: str | None


@dataclasses.dataclass(frozen=True)
class Grid:
    """A drawing of two dimensions."""

    caption: str  # which shard of the further dimensions it shows; often empty
    corner: str  # which dimensions run down and to the right; empty if none do, and then there are no headings
    columns: list[list[str]]  # the words above each
    rows: list[tuple[list[str], list[Cell]]]  # the words beside each, and its cells


class LayoutPicture:
    """A drawing of a layout: a cell for each shard of a tensor, with the devices that hold it."""

    def __init__(
        self,
        title: str,
        axes: Sequence[tuple[str, int]],
        offsets: Sequence[tuple[int, ...]],
        devices: Sequence[jax.Device],
        shape: Sequence[int] | None = None,
    ):
        lengths = [None] * len(axes) if shape is None else list(shape)
        self._axes = [Axis(i, *axis, length) for i, (axis, length) in enumerate(zip(axes, lengths, strict=True))]
        self._holders: dict[tuple[int, ...], list[jax.Device]] = {}
        for offset, device in zip(offsets, devices, strict=True):  # offset: index of the shard in each dimension
            self._holders.setdefault(offset, []).append(device)
        self._colours = {offset: _COLOURS[i % len(_COLOURS)] for i, offset in enumerate(self._holders)}
        self.title = title
        if shape is not None:
            part = tuple(axis.length // axis.parts for axis in self._axes if axis.length is not None)
            self.title += f": shape {tuple(shape)}" + (f" in parts of {part}" if len(self._holders) > 1 else "")

    def grids(self, most: int = _MOST_PARTS) -> Iterator[Grid]:
        """Returns what to draw: grids of at most `most` rows and columns."""
        # If there are three dimensions or more, only the sharded ones are drawn: the last two as a grid, and one such
        # grid for each shard of the others.
        drawn = self._axes if len(self._axes) < 3 else [axis for axis in self._axes if axis.name]
        row, column = [_NO_AXIS, _NO_AXIS, *drawn][-2:]
        others = drawn[:-2]
        arrows = [f"dim {axis.position} {arrow}" for axis, arrow in ((row, "↓"), (column, "→")) if axis is not _NO_AXIS]
        for parts in itertools.product(*(axis.shown(most) for axis in others)):
            if _GAP in parts:
                continue
            captions = [
                f"dim {axis.position}: {'  '.join(axis.heading(i))}" for axis, i in zip(others, parts, strict=True)
            ]
            fixed = dict(zip(others, parts, strict=True))
            rows = [
                (row.heading(i), [self._cell({**fixed, row: i, column: j}) for j in column.shown(most)])
                for i in row.shown(most)
            ]
            yield Grid(", ".join(captions), " ".join(arrows), [column.heading(j) for j in column.shown(most)], rows)

    def _cell(self, parts: dict[Axis, int]) -> Cell:
        if _GAP in parts.values():
            return Cell("…", None)
        offset = tuple(parts.get(axis, 0) for axis in self._axes)
        devices = self._holders[offset]
        return Cell(f"{devices[0].platform} {_runs([device.id for device in devices])}", self._colours[offset])

    # In a terminal.

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield Text(self.title, style="bold")
        unlimited = options.update(max_width=10_000)
        for most in range(_MOST_PARTS, 2, -1):
            grids = list(self.grids(most))
            if all(Measurement.get(console, unlimited, _table(grid)).maximum <= options.max_width for grid in grids):
                break
        for grid in grids:
            if grid.caption:
                yield Text(grid.caption)
            yield _table(grid)

    def __str__(self) -> str:
        width = shutil.get_terminal_size((100, 24)).columns
        console = Console(file=io.StringIO(), color_system=None, width=width)
        console.print(self)
        return console.file.getvalue().rstrip("\n")  # type: ignore[attr-defined]

    __repr__ = __str__

    # In a notebook.

    def to_svg(self) -> str:
        """Returns the drawing as an SVG image."""
        return _Svg(self.title, list(self.grids())).text()

    def _repr_html_(self) -> str:
        return f"<div>{self.to_svg()}</div>"


def _runs(ids: Sequence[int]) -> str:
    """Returns numbers as people write them, `0-3,6`; long lists with their middle left out."""
    runs: list[list[int]] = []
    for i in sorted(ids):
        if runs and i == runs[-1][-1] + 1:
            runs[-1].append(i)
        else:
            runs.append([i])
    written = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs]
    return ",".join(written if len(written) <= _MOST_RUNS else [*written[: _MOST_RUNS - 2], "…", written[-1]])


def _table(grid: Grid) -> Table:
    table = Table(box=box.SQUARE, show_header=bool(grid.corner), show_lines=True, padding=0)
    if grid.corner:
        table.add_column(Text(grid.corner), vertical="middle")
    for words in grid.columns:
        table.add_column(Text("\n".join(words), justify="center"), justify="center")
    for words, cells in grid.rows:
        beside = [Text(" ".join(words))] if grid.corner else []
        table.add_row(*beside, *map(_coloured, cells))
    return table


def _coloured(cell: Cell) -> RenderableType:
    style = f"{_INK} on {cell.colour}" if cell.colour else ""
    return Padding(Align.center(Text(cell.label)), (0, 1), style=style)


class _Svg:
    """Writes grids below each other; lengths are pixels."""

    LETTER, LINE, SIDE, GAP = 7.5, 18, 12, 14

    def __init__(self, title: str, grids: Sequence[Grid]):
        self._elements: list[str] = []
        self._right, self._bottom = 0.0, float(self.GAP)
        self._line(title, bold=True)
        for grid in grids:
            if grid.caption:
                self._line(grid.caption)
            self._grid(grid)

    def text(self) -> str:
        width, height = self._right + self.GAP, self._bottom
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
            f'viewBox="0 0 {width:g} {height:g}" font-family="monospace" font-size="12" fill="{_INK}">'
            f'<rect width="100%" height="100%" fill="#ffffff"/>{"".join(self._elements)}</svg>'
        )

    def _line(self, words: str, bold: bool = False) -> None:
        self._words([words], self.GAP, self._bottom, self.LINE, anchor="start", bold=bold)
        self._right = max(self._right, self.GAP + self._width([words]))
        self._bottom += self.LINE + self.GAP / 2

    def _grid(self, grid: Grid) -> None:
        beside = [" ".join(words) for words, _ in grid.rows]
        start = self.GAP + (self._width([*beside, grid.corner]) + self.SIDE if grid.corner else 0)
        labels = [cell.label for _, cells in grid.rows for cell in cells]
        width = self._width([*labels, *itertools.chain(*grid.columns)]) + 2 * self.SIDE
        if grid.corner:
            height = self.LINE * max(1, *map(len, grid.columns))
            self._words([grid.corner], self.GAP, self._bottom, height, anchor="start")
            for j, words in enumerate(grid.columns):
                self._words(words, start + (j + 0.5) * width, self._bottom, height)
            self._bottom += height + self.GAP / 2
        height = 2 * self.LINE
        for heading, (_, cells) in zip(beside, grid.rows, strict=True):
            self._words([heading], self.GAP, self._bottom, height, anchor="start")
            for j, cell in enumerate(cells):
                self._elements.append(
                    f'<rect x="{start + j * width:g}" y="{self._bottom:g}" width="{width:g}" height="{height:g}" '
                    f'fill="{cell.colour or "#ffffff"}" stroke="#666666"/>'
                )
                self._words([cell.label], start + (j + 0.5) * width, self._bottom, height)
            self._bottom += height
        self._right = max(self._right, start + width * len(grid.columns))
        self._bottom += self.GAP

    def _width(self, lines: Sequence[str]) -> float:
        return self.LETTER * max(map(len, lines))

    def _words(
        self, lines: Sequence[str], x: float, y: float, height: float, anchor: str = "middle", bold: bool = False
    ) -> None:
        """Writes lines into a box that begins at `y`, centred in its height."""
        top = y + (height - self.LINE * len(lines)) / 2
        weight = ' font-weight="bold"' if bold else ""
        for i, line in enumerate(lines):
            baseline = top + (i + 0.72) * self.LINE
            self._elements.append(
                f'<text x="{x:g}" y="{baseline:g}" text-anchor="{anchor}"{weight}>{escape(line)}</text>'
            )
