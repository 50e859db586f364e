"""The timeline of a job: what each worker did when."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from replicax.checks import explained
from replicax.errors import ArgumentError
from replicax.tools.plots.style import Palette, drawn, legend_above

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Period(NamedTuple):
    """Something that a worker did for some time.

    Attributes:
        worker: The worker's number or name.
        begin: When it began, in seconds.
        end: When it ended, in seconds.
        what: What it did: each kind has a colour. "lost" and "waits" have those of a failure and of waiting.

    Example:
        >>> rx.plots.Period(worker=0, begin=0.0, end=2.5, what="step").end
        2.5
    """

    worker: int | str
    begin: float
    end: float
    what: str = "runs"


class _SpanLike(Protocol):
    worker: int
    begin: float
    end: float
    how: str


class MembershipLike(Protocol):
    """The history of an elastic job, as `replicax members` reads it."""

    @property
    def runs(self) -> Sequence[_SpanLike]:
        """The processes."""

    @property
    def memberships(self) -> Sequence[_SpanLike]:
        """When they took part."""


Job: TypeAlias = Iterable[Period | tuple[int | str, float, float, str]] | MembershipLike

_QUIET, _ALARM = ("waits", "starts or waits"), ("lost", "failed")
_MEMBER, _BAR = "a member", 0.62
_HEIGHT, _ROW = 1.7, 0.42  # inches


@explained
def worker_timeline(
    job: Job,
    *,
    title: str = "Workers over time",
    path: str | os.PathLike[str] | None = None,
    dark: bool = False,
    axes: Axes | None = None,
) -> Figure:
    """Draws a row for each worker: what it did from when to when.

    Args:
        job: Periods, or tuples `(worker, begin, end, what)` with times in seconds; or the history of an elastic job.
        title: The title.
        path: The file to write, PNG, SVG or PDF; None to write none.
        dark: Whether the ground is dark.
        axes: Axes of matplotlib to draw on instead of a new figure.

    Raises:
        ArgumentError: There is no period, or one ends before it begins; matplotlib is not installed; `path` cannot be
            written.

    Example:
        >>> import replicax as rx
        >>> figure = rx.plots.worker_timeline([(0, 0.0, 9.0, "trains"), (1, 4.0, 6.0, "waits")])
    """
    periods = _periods(job)
    workers = list(dict.fromkeys(period.worker for period in sorted(periods, key=lambda each: str(each.worker))))
    workers.sort(key=lambda worker: (isinstance(worker, str), worker))
    kinds = list(dict.fromkeys(period.what for period in periods))
    origin = min(period.begin for period in periods)

    def draw(axes: Axes, colors: Palette) -> None:
        from matplotlib.patches import Patch

        shades = _shades(kinds, colors)
        for period in periods:
            row = workers.index(period.worker)
            width = max(period.end - period.begin, 0.0)
            axes.barh(
                row, width, _BAR, period.begin - origin, color=shades[period.what], edgecolor=colors.ground,
                linewidth=0.8,
            )  # fmt: skip
        axes.set_yticks(range(len(workers)), [_named(worker) for worker in workers])
        axes.set_ylim(len(workers) - 0.45, -0.55)
        axes.set_xlim(left=0)
        axes.set_xlabel("seconds")
        axes.grid(True, axis="x")
        axes.grid(False, axis="y")
        handles = [Patch(color=shade, label=kind) for kind, shade in shades.items()]
        legend_above(axes, handles=handles)

    size = (7.2, _HEIGHT + _ROW * len(workers))
    return drawn(draw, title=title, path=path, dark=dark, axes=axes, size=size)


def _shades(kinds: Sequence[str], colors: Palette) -> dict[str, str]:
    series = iter([*colors.series] * 10)
    known = {**dict.fromkeys(_QUIET, colors.quiet), **dict.fromkeys(_ALARM, colors.alarm)}
    return {kind: known.get(kind) or next(series) for kind in kinds}


def _named(worker: int | str) -> str:
    return f"worker {worker}" if isinstance(worker, int) else worker


def _periods(job: Job) -> list[Period]:
    if not isinstance(job, Iterable):
        found = [Period(span.worker, span.begin, span.end, _QUIET[1]) for span in job.runs]
        found += [Period(span.worker, span.begin, span.end, _MEMBER) for span in job.memberships]
    else:
        try:
            found = [Period(*each) for each in job]
        except TypeError as error:
            raise ArgumentError(f"A period is (worker, begin, end, what), got {job!r:.100}.") from error
    backwards = [period for period in found if not period.begin <= period.end]
    if backwards or not found:
        what = f"got {backwards[0]}" if backwards else "there is none"
        raise ArgumentError(f"A timeline has periods that end after they begin: {what}.")
    return found
