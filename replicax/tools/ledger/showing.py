"""A ledger in words, as a picture, and as a trace."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from replicax.runtime import clock
from replicax.tools.ledger.culprits import FAILING, INCIDENTS, before_first_step
from replicax.tools.ledger.reading import Ledger
from replicax.tools.plots.style import Palette, drawn, legend_above

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BAR, _HEIGHT, _ROW = 0.62, 1.9, 0.42  # of the picture: the height of a bar, and inches
#: The colours of the picture: shades for what prepares or waits, and the series for the rest.
_QUIET = (clock.START, clock.MEETING, clock.IMPORT, clock.ENDING)
_ALARM = (clock.STALL, clock.LOST, clock.RESTART)
_LEAST_SHOWN = 0.0005  # of the wall clock


def words(ledger: Ledger) -> list[str]:
    """Returns what a ledger says, in lines."""
    restarts = f", {ledger.attempts} attempts" if ledger.attempts > 1 else ""
    lines = [f"{ledger.wall:,.1f} s{restarts}, of which the workers computed {ledger.goodput:.1%} (goodput)."]
    found = ledger.culprit
    if ledger.unexplained > 0.05 * ledger.wall:
        lines.append(
            f"For {ledger.unexplained:,.1f} s workers have waited for others, and nothing that these did explains it."
        )
    before = before_first_step(worker.slices for worker in ledger.workers)
    lines.append(f"Before the first step: {', '.join(f'{name} {spent:,.1f} s' for name, spent in before.items())}.")
    if found is None:
        lines.append("After it nothing stands out: no single cause has cost a twentieth of the time.")
        return lines
    if found.worker and found.what != FAILING and len(ledger.workers) > 1:
        lines.append(f"The others have waited for {found.worker}.")
    lines.append(f"After it, {'lost' if found.what in INCIDENTS else 'most time'}: {found}.")
    lines.append(f"Without that the job would take about {ledger.wall - found.seconds:,.1f} s. {found.advice}")
    return lines


def table(ledger: Ledger) -> Table:
    """Returns a table of workers and classes: seconds, and the part of the wall clock."""
    shown = Table(title="Where the time went, in seconds", title_justify="left")
    shown.add_column("")
    for worker in ledger.workers:
        shown.add_column(worker.name, justify="right")
    shown.add_column("share", justify="right")
    for name, mean in ledger.seconds.items():
        if mean > _LEAST_SHOWN * ledger.wall:
            cells = [f"{worker.seconds.get(name, 0.0):,.1f}" for worker in ledger.workers]
            shown.add_row(name, *cells, f"{mean / ledger.wall:.1%}")
    shown.add_section()
    shown.add_row("sum", *(f"{sum(worker.seconds.values()):,.1f}" for worker in ledger.workers), "")
    programs = {worker.program for worker in ledger.workers}
    steps = f"steps ({programs.pop()})" if len(programs) == 1 and ledger.workers[0].program else "steps"
    shown.add_row(steps, *(f"{worker.steps:,}" for worker in ledger.workers), "")
    if any(worker.own_step is not None for worker in ledger.workers):
        own = ["" if each.own_step is None else f"{1000 * each.own_step:,.2f}" for each in ledger.workers]
        shown.add_row("own ms of a step", *own, "")
    return shown


def picture(ledger: Ledger, path: str | os.PathLike[str], dark: bool = False) -> Figure:
    """Draws a bar for each worker, of its classes, and writes it as PNG, SVG or PDF."""
    names = [name for name, mean in ledger.seconds.items() if mean > _LEAST_SHOWN * ledger.wall]

    def draw(axes: Axes, colors: Palette) -> None:
        shades = _shades(names, colors)
        for row, worker in enumerate(ledger.workers):
            left = 0.0
            for name in names:
                width = max(worker.seconds.get(name, 0.0), 0.0)
                axes.barh(
                    row, width, _BAR, left, color=shades[name][0], hatch=shades[name][1], edgecolor=colors.ground,
                    linewidth=0.8, label=name if row == 0 else None,
                )  # fmt: skip
                left += width
        axes.set_yticks(range(len(ledger.workers)), [worker.name for worker in ledger.workers])
        axes.set_ylim(len(ledger.workers) - 0.45, -0.55)
        axes.set_xlabel("seconds")
        axes.grid(True, axis="x")
        axes.grid(False, axis="y")
        legend_above(axes)

    title = f"Where the time went: goodput {ledger.goodput:.0%}"
    size = (9.6, _HEIGHT + _ROW * len(ledger.workers))
    return drawn(draw, title=title, path=path, dark=dark, size=size)


def _shades(names: list[str], colors: Palette) -> dict[str, tuple[str, str]]:
    """Returns colour and hatching of each class; those of a kind have one colour, and differ by their hatching."""
    found: dict[str, tuple[str, str]] = {}
    hatches = {"quiet": iter(("", "//", "..", "xx")), "alarm": iter(("", "//", ".."))}
    series = iter([(color, hatch) for hatch in ("", "//") for color in colors.series])
    for name in names:
        if name in _QUIET:
            found[name] = colors.quiet, next(hatches["quiet"])
        elif name in _ALARM:
            found[name] = colors.alarm, next(hatches["alarm"])
        else:
            found[name] = next(series)
    return found


def write_trace(ledger: Ledger, path: Path) -> None:
    """Writes a trace for Perfetto or chrome://tracing: a row for each worker, its classes one after the other."""
    # Within a second the order of what was done is not kept, so there the classes stand in the order of the table.
    events = [event for number, _ in enumerate(ledger.workers) for event in _events(ledger, number)]
    path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}), encoding="utf-8")


def _events(ledger: Ledger, number: int) -> Iterator[dict[str, Any]]:
    worker = ledger.workers[number]
    yield {"ph": "M", "name": "process_name", "pid": number, "tid": 0, "args": {"name": worker.name}}
    last: dict[str, Any] | None = None
    for each in worker.slices:
        at = each.begin
        for name in clock.CLASSES:
            seconds = each.seconds.get(name, 0.0)
            if seconds <= 0:
                continue
            begin, length = round(1e6 * (at - ledger.begin)), round(1e6 * seconds)
            at += seconds
            if last is not None and last["name"] == name and abs(begin - last["ts"] - last["dur"]) < 2:
                last["dur"] = begin + length - last["ts"]
                continue
            if last is not None:
                yield last
            last = {"ph": "X", "name": name, "pid": number, "tid": 0, "ts": begin, "dur": length}
    if last is not None:
        yield last
