"""The stored ratios, `benchmarks/ratios.toml`: what was measured, how far from it a figure may be, and the targets."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

STORED = Path(__file__).resolve().parent.parent / "ratios.toml"


class Worse(NamedTuple):
    """A figure that got worse.

    Attributes:
        name: Of the `RESULT` line.
        value: What was measured now.
        stored: What was measured when the ratios were stored.
        limit: What it may be.
    """

    name: str
    value: float
    stored: float
    limit: float


@dataclass(frozen=True)
class Stored:
    """What the file says.

    Attributes:
        tolerance: How much larger than stored a figure may be, relative.
        tolerances: The same for single figures.
        targets: What the figures should be.
        measured: The figures, by the number of cores of the machine.
    """

    tolerance: float
    tolerances: Mapping[str, float]
    targets: Mapping[str, float]
    measured: Mapping[int, Mapping[str, float]]

    def nearest(self, cores: int) -> int:
        """Returns the number of cores, of those in the file, that is nearest to this one."""
        return min(self.measured, key=lambda each: (abs(each - cores), each))

    def worse(self, found: Mapping[str, float], cores: int) -> list[Worse]:
        """Returns what is more than its tolerance above the stored figure; figures that are not stored are left out."""
        stored = self.measured[self.nearest(cores)]
        limits = {
            name: stored[name] * (1 + self.tolerances.get(name, self.tolerance)) for name in found if name in stored
        }
        return [Worse(name, found[name], stored[name], limit) for name, limit in limits.items() if found[name] > limit]


def load(path: Path) -> Stored:
    """Reads the file."""
    content = tomllib.loads(path.read_text())
    measured = {int(cores): figures for cores, figures in content["measured"].items()}
    return Stored(content["tolerance"], content["tolerances"], content["targets"], measured)


def save(path: Path, stored: Stored) -> None:
    """Writes the file, its figures in the order of the mapping."""

    def table(title: str, figures: Mapping[str, float]) -> str:
        return f"\n[{title}]\n" + "".join(f"{name} = {value:.3g}\n" for name, value in figures.items())

    head = "# Written by `python benchmarks/check.py --update`; the tolerances and targets are kept.\n"
    parts = [head, f"tolerance = {stored.tolerance}\n", table("tolerances", stored.tolerances)]
    parts += [table("targets", stored.targets)]
    parts += [table(f"measured.{cores}", figures) for cores, figures in sorted(stored.measured.items())]
    path.write_text("".join(parts))


def cores() -> int:
    """Returns how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
