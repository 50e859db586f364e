"""A table in the terminal of what workers and servers are doing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from replicax.parameter_server.scheduling.periodic import Periodic
from replicax.parameter_server.scheduling.stats import Stats, WorkerStats

_PHASES = ("input", "pull", "compute", "push")
_BARS = "▁▂▃▄▅▆▇█"
_MOST_BARS = 16


@contextlib.contextmanager
def live_table(stats: Callable[[], Stats], console: Console | None = None, every_s: float = 0.5) -> Iterator[None]:
    """Shows a table while a `with` block runs, renewed every so many seconds; the last one stays."""
    console = console or Console()
    if not console.is_terminal:  # A file, or a batch job's log: only the last table is printed.
        try:
            yield
        finally:
            console.print(table(stats()))
        return
    live = Live(table(stats()), console=console, auto_refresh=False, transient=False)
    with live, Periodic(lambda: live.update(table(stats()), refresh=True), every_s, "replicax-live"):
        yield


def table(stats: Stats) -> RenderableType:
    """Returns the figures: a row for each worker, and lines for all of them together."""
    rows = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in ("worker", "steps", "steps/s", *_PHASES, "restarts"):
        rows.add_column(name, justify="right", no_wrap=True)
    for number, worker in enumerate(stats.workers):
        steps = (f"{worker.steps:,}", f"{worker.steps_per_second:.1f}")
        rows.add_row(str(number), *steps, *_shares(worker), _restarts(worker.restarts))
    return Group(rows, Text(), _totals(stats), _staleness(stats), _traffic(stats))


def _shares(worker: WorkerStats) -> list[Text]:
    """Returns what share of its time a worker spends with what."""
    total = sum(worker.seconds.values())
    shares = [worker.seconds.get(phase, 0.0) / total if total else None for phase in _PHASES]
    largest = max((share for share in shares if share is not None), default=None)
    return [
        Text("-") if share is None else Text(f"{share:.0%}", style="bold" if share == largest else "")
        for share in shares
    ]


def _restarts(count: int) -> Text:
    return Text(str(count), style="yellow" if count else "dim")


def _totals(stats: Stats) -> Text:
    return Text(f"{stats.steps:,} steps, {stats.steps_per_second:.1f} steps/s; queue: {stats.queue}")


def _traffic(stats: Stats) -> Text:
    found = Text(f"servers: pulled {_size(stats.bytes_pulled)}, pushed {_size(stats.bytes_pushed)}, ")
    return found.append(f"restarts {stats.server_restarts}", style="yellow" if stats.server_restarts else "")


def _staleness(stats: Stats) -> Text:
    if not stats.staleness:
        return Text("staleness: no updates yet", style="dim")
    words = f"staleness: {stats.mean_staleness:.1f} mean, {max(stats.staleness)} max  "
    return Text(words).append(_histogram(stats.staleness), style="cyan")


def _histogram(counts: Mapping[int, int]) -> str:
    """Returns a bar for each number of updates from 0 on; the last one stands for all larger ones too."""
    bars = [0] * (min(max(counts), _MOST_BARS - 1) + 1)
    for behind, count in counts.items():
        bars[min(behind, len(bars) - 1)] += count
    tallest = max(bars)
    return "".join(_BARS[-(-bar * (len(_BARS) - 1) // tallest)] if bar else " " for bar in bars)


def _size(nbytes: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 1000:
            return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} TB"
