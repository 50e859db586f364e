"""Whether replicax has become slower against its peers: a short form of all ratios, compared with those stored.

    python benchmarks/check.py [--only single,fit] [--update] [--stored FILE] [--install DIR]

Measures the rows of `against_peers.py` in their quick form (five minutes on two cores) and compares with
`benchmarks/ratios.toml`, for the number of cores that is nearest to this machine's. A row with a figure above its
tolerance is measured once more, and the better figure counts, so that one disturbance is no alarm. Prints what got
worse and ends with 1; so it does if a row fails. A peer that is not installed leaves out its figures. `--update` stores
what was measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

from against_peers import add_peers, measured, setup_of
from peers import ratios
from peers.row import Row, Setup
from peers.rows import ROWS
from timing import print_table

SHORT = [name for name in ROWS if name not in ("epoch", "allreduce_4mib")]
"""The rows that are measured: the start of an epoch is a difference of large figures, too coarse in a quick form."""


def values(rows: list[Row]) -> dict[str, float]:
    """Returns the ratios; seconds are left out, which depend on the machine."""
    figures = {name: value for row in rows for name, (value, _, _) in row.results.items()}
    return {name: value for name, value in figures.items() if not name.endswith(("_s", "_ms"))}


def measure(names: list[str], setup: Setup, stored: ratios.Stored) -> tuple[dict[str, float], list[str]]:
    """Measures rows, and again those that seem to have become worse. Returns the figures, and what failed."""
    found: dict[str, float] = {}
    again, failures = [], []
    for name in names:
        rows, failed = measured([name], setup)
        failures += failed
        found.update(values(rows))
        if stored.worse(values(rows), ratios.cores()):
            again.append(name)
    for name in again:
        rows, failed = measured([name], setup)
        failures += failed
        found.update({figure: min(value, found[figure]) for figure, value in values(rows).items()})
    return found, failures


def main() -> None:
    """Measures, compares and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(SHORT), help="rows of against_peers.py")
    parser.add_argument("--update", action="store_true", help="store what was measured, for this number of cores")
    parser.add_argument("--stored", type=Path, default=ratios.STORED, help="the file with the ratios")
    add_peers(parser)
    arguments = parser.parse_args()
    stored, cores = ratios.load(arguments.stored), ratios.cores()
    found, failures = measure(arguments.only.split(","), setup_of(arguments, quick=True), stored)

    if arguments.update:
        figures = {**stored.measured.get(cores, {}), **found}
        ratios.save(arguments.stored, dataclasses.replace(stored, measured={**stored.measured, cores: figures}))
        print(f"stored {len(found)} figures for {cores} cores in {arguments.stored}")
    worse = stored.worse(found, cores) if not arguments.update else []
    if worse:
        cells = [(each.name, f"{each.value:.3f}", f"{each.stored:.3f}", f"{each.limit:.3f}") for each in worse]
        print_table("worse than stored", ("", "now", "stored", "limit"), cells)
    else:
        print(f"{len(found)} figures, none worse than the stored ones for {stored.nearest(cores)} cores")
    for name, value in found.items():
        print(f"RESULT {name} {value:.3f}")
    sys.exit(1 if worse or failures else 0)


if __name__ == "__main__":
    main()
