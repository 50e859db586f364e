"""How the benchmarks time things: variants in turn, medians over rounds."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np


def interleaved_medians(
    variants: Mapping[str, Callable[[], object]], finish: Mapping[str, Callable[[], None]], rounds: int, steps: int
) -> dict[str, float]:
    """Runs the variants in turn, so that a machine whose speed drifts slows them alike.

    Args:
        variants: One step of each variant.
        finish: For each variant, waits until its steps have really finished.
        rounds: Number of turns; the first one is not counted.
        steps: Steps in each turn.

    Returns:
        For each variant the median over rounds of the seconds per step.
    """
    times: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(rounds + 1):
        for name, step in variants.items():
            start = time.perf_counter()
            for _ in range(steps):
                step()
            finish[name]()
            if turn:
                times[name].append((time.perf_counter() - start) / steps)
    return {name: statistics.median(each) for name, each in times.items()}


def exponent(sizes: Sequence[float], figures: Sequence[float]) -> float:
    """Returns the exponent `a` of the least-squares fit `figure = c * size**a`; zeros count as one millionth.

    It is not a number for a single size.
    """
    if len(sizes) < 2:
        return math.nan
    x, y = np.log(np.asarray(sizes, float)), np.log(np.maximum(np.asarray(figures, float), 1e-6))
    return float(np.polyfit(x, y, 1)[0])


def print_table(title: str, header: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """Prints rows of cells under a header, with rich."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for i, name in enumerate(header):
        table.add_column(name, justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*row)
    Console().print(table)
