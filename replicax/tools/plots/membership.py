"""Membership over time as a table, as lines of characters, and as a picture (SVG)."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from xml.sax.saxutils import escape

from replicax.job.membership_history import History, Span
from replicax.job.supervision.members import TOO_LATE
from replicax.tools.plots.style import LIGHT

_COLUMNS = 64
_IS_MEMBER, _RUNS, _IS_OFF = "█", "░", " "
_PEACEFUL = ("", "finished", "left out", "the job started again", TOO_LATE)

# The picture, in pixels.
_WIDTH, _LEFT, _RIGHT, _TOP, _ROW, _BAR, _STEPS = 960, 90, 20, 64, 28, 16, 70
_TICKS = 8
_MEMBER_COLOR, _RUN_COLOR, _LOST_COLOR, _LEFT_COLOR = LIGHT.series[0], LIGHT.quiet, LIGHT.alarm, LIGHT.series[4]
_LINE_COLOR, _TEXT_COLOR, _GRID_COLOR = LIGHT.line, LIGHT.text, LIGHT.grid


def summary(history: History) -> str:
    """Returns the job in one paragraph."""
    numbers = history.members_over_time()
    seconds = sum(end - begin for begin, end, _ in numbers)
    mean = sum((end - begin) * number for begin, end, number in numbers) / seconds if seconds else 0.0
    lost = sum(span.how not in _PEACEFUL for span in history.runs)
    sizes = [number for *_, number in numbers]
    between = f"{min(sizes)} to {max(sizes)} members, {mean:.2f} on average" if sizes else "no world began"
    return (
        f"{_duration(history.end - history.begin)}, {len(sizes)} world(s), {between}, {lost} process(es) lost or left."
    )


def table(history: History) -> str:
    """Returns all that happened, one line each."""
    rows = [("time", "after", "world", "members", "what happened")]
    for change in history.changes:
        clock = time.strftime("%H:%M:%S", time.localtime(change.time))
        world = str(change.world) if change.world else ""
        rows.append((clock, f"{change.time - history.begin:.1f} s", world, _listed(change.members), change.text))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]:<{widths[3]}}  {row[4]}".rstrip()
        for row in rows
    )


def bars(history: History) -> str:
    """Returns a line of characters for each worker: who took part when."""
    step = max(history.end - history.begin, 1e-9) / _COLUMNS

    def character(worker: int, column: int) -> str:
        middle = history.begin + (column + 0.5) * step
        for spans, shown in ((history.memberships, _IS_MEMBER), (history.runs, _RUNS)):
            if any(span.worker == worker and span.begin <= middle < span.end for span in spans):
                return shown
        return _IS_OFF

    lines = [
        f"worker {worker:<3} |{''.join(character(worker, column) for column in range(_COLUMNS))}|"
        for worker in history.workers
    ]
    width = _duration(history.end - history.begin)
    return "\n".join([*lines, f"{'':10} 0 s{width:>{_COLUMNS - 2}}", f"{_IS_MEMBER} a member   {_RUNS} a process only"])


def svg(history: History, title: str) -> str:
    """Returns a picture: a bar for each worker, and the number of members below."""
    workers = history.workers
    bottom = _TOP + _ROW * len(workers)
    height = bottom + _STEPS + 60
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{_LEFT}" y="24" font-size="16">{escape(title)}</text>',
        f'<text x="{_LEFT}" y="44" fill="{_TEXT_COLOR}">{escape(summary(history))}</text>',
        *_axis(history, bottom + _STEPS + 10),
    ]
    for row, worker in enumerate(workers):
        y = _TOP + row * _ROW
        parts.append(f'<text x="{_LEFT - 10}" y="{y + _BAR - 3}" text-anchor="end">worker {worker}</text>')
        parts += [_bar(history, span, y, _RUN_COLOR) for span in history.runs if span.worker == worker]
        parts += [_bar(history, span, y, _MEMBER_COLOR) for span in history.memberships if span.worker == worker]
        parts += [_mark(history, span, y) for span in history.runs if span.worker == worker and span.how]
    parts += _steps(history, bottom + 10)
    parts += _legend(bottom + _STEPS + 48)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _x(history: History, at: float) -> float:
    length = max(history.end - history.begin, 1e-9)
    return round(_LEFT + (_WIDTH - _LEFT - _RIGHT) * (at - history.begin) / length, 1)


def _bar(history: History, span: Span, y: float, color: str) -> str:
    left, right = _x(history, span.begin), _x(history, span.end)
    what = f"worker {span.worker}, run {span.incarnation}: {_duration(span.end - span.begin)}"
    words = f"{what}; {span.how}" if span.how else what
    return (
        f'<rect x="{left}" y="{y}" width="{max(right - left, 0.5):.1f}" height="{_BAR}" fill="{color}">'
        f"<title>{escape(words)}</title></rect>"
    )


def _mark(history: History, span: Span, y: float) -> str:
    """Returns the mark at the end of a process that did not end by itself."""
    if span.how in _PEACEFUL:
        return ""
    color = _LEFT_COLOR if "preempt" in span.how else _LOST_COLOR
    x = _x(history, span.end)
    return (
        f'<path d="M {x - 4} {y} l 8 {_BAR} m -8 0 l 8 -{_BAR}" stroke="{color}" stroke-width="2" fill="none">'
        f"<title>{escape(f'worker {span.worker}: {span.how}')}</title></path>"
    )


def _axis(history: History, y: float) -> list[str]:
    length = max(history.end - history.begin, 1e-9)
    step = _round_step(length / _TICKS)
    parts = []
    for number in range(math.floor(length / step) + 1):
        x = _x(history, history.begin + number * step)
        parts.append(f'<line x1="{x}" y1="{_TOP - 6}" x2="{x}" y2="{y}" stroke="{_GRID_COLOR}"/>')
        parts.append(
            f'<text x="{x}" y="{y + 14}" text-anchor="middle" fill="{_TEXT_COLOR}">{_duration(number * step)}</text>'
        )
    return parts


def _steps(history: History, y: float) -> list[str]:
    """Returns the number of members over time, as a line of steps."""
    numbers = history.members_over_time()
    if not numbers:
        return []
    most = max(history.most, *(number for *_, number in numbers))
    height = _STEPS - 10
    points = []
    for begin, end, number in numbers:
        level = round(y + height * (1 - number / most), 1)
        points += [f"{_x(history, begin)},{level}", f"{_x(history, end)},{level}"]
    return [
        f'<text x="{_LEFT - 10}" y="{y + 10}" text-anchor="end" fill="{_TEXT_COLOR}">{most}</text>',
        f'<text x="{_LEFT - 10}" y="{y + height}" text-anchor="end" fill="{_TEXT_COLOR}">0</text>',
        f'<text x="{_LEFT - 28}" y="{y + height / 2 + 4}" text-anchor="end" fill="{_TEXT_COLOR}">members</text>',
        f'<line x1="{_LEFT}" y1="{y + height}" x2="{_WIDTH - _RIGHT}" y2="{y + height}" stroke="{_LINE_COLOR}"/>',
        f'<polyline points="{" ".join(points)}" fill="none" stroke="{_MEMBER_COLOR}" stroke-width="2"/>',
    ]


def _legend(y: float) -> list[str]:
    parts, x = [], float(_LEFT)
    for color, words in (
        (_MEMBER_COLOR, "a member"),
        (_RUN_COLOR, "its process starts or waits"),
        (_LOST_COLOR, "lost"),
        (_LEFT_COLOR, "preempted"),
    ):
        parts.append(f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{color}"/>')
        parts.append(f'<text x="{x + 18}" y="{y}">{words}</text>')
        x += 40 + 7 * len(words)
    return parts


def _round_step(least: float) -> float:
    """Returns a round number of seconds that is not smaller."""
    choices = [size * unit for unit in (1, 60, 3600) for size in (1, 2, 5, 10, 15, 30)]
    return next((float(choice) for choice in choices if choice >= least), 86_400.0 * math.ceil(least / 86_400))


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:g} s" if seconds == round(seconds) else f"{seconds:.1f} s"
    return f"{seconds / 60:.4g} min" if seconds < 7200 else f"{seconds / 3600:.4g} h"


def _listed(numbers: Sequence[int]) -> str:
    """Returns numbers with runs of three or more as ranges.

    >>> _listed([0, 1, 2, 3, 5])
    '0-3 5'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    shown = (f"{run[0]}-{run[-1]}" if len(run) > 2 else " ".join(map(str, run)) for run in runs)
    return " ".join(shown)
