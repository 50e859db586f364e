"""Training steps of ours beside those of every peer at its best, on this machine: the table, ratios and RESULT lines.

    python benchmarks/against_peers.py [--quick] [--only workers2,central2] [--install DIR]
                                       [--torch PYTHON] [--tensorflow PYTHON] [--json FILE]

Each contestant has processes of its own, alive at the same time, and makes some steps when it is its turn; the others
wait meanwhile. A figure is the median over turns, a ratio that of two contestants in the same seconds; the processes
are started anew several times, and the median of those launches counts. Before it is timed, every contestant makes the
same first steps from the same weights on the same batches, and its losses must be those of the others. Torch and
TensorFlow have interpreters of their own; without them their rows have no RESULT. Ratios hold from machine to machine,
milliseconds do not. Ends with 1 where a row failed; a target that is missed is marked.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from peers import interpreters, ratios
from peers.contest import ContestError
from peers.row import Row, Setup
from peers.rows import ROWS
from timing import print_table


def show(row: Row) -> None:
    """Prints a row's variants, and its results."""
    cells = [
        (name, f"{figure:.3g}" if figure < 100 else f"{figure:.0f}", "" if ratio is None else f"{ratio:.3f}")
        for name, figure, ratio in row.lines
    ]
    print_table(row.title, ("", row.unit, "by the best peer"), cells)
    for note in row.notes:
        print(f"  {note}")
    print(flush=True)


def measured(names: list[str], setup: Setup) -> tuple[list[Row], list[str]]:
    """Measures rows, and returns them and what failed."""
    rows, failed = [], []
    for name in names:
        start = time.perf_counter()
        try:
            row = ROWS[name](setup)
        except ContestError as error:
            failed.append(f"{name}: {error}")
            print(f"{name} failed: {error}", file=sys.stderr, flush=True)
            continue
        row.notes.append(f"measured in {time.perf_counter() - start:.0f} s")
        show(row)
        rows.append(row)
    return rows, failed


def add_peers(parser: argparse.ArgumentParser) -> None:
    """Adds the options about the peers' interpreters."""
    parser.add_argument("--torch", help="an interpreter that has torch")
    parser.add_argument("--tensorflow", help="an interpreter that has TensorFlow and tf_keras")
    parser.add_argument("--install", type=Path, metavar="DIR", help="install torch and TensorFlow below this folder")


def setup_of(found: argparse.Namespace, quick: bool) -> Setup:
    """Returns what the rows are given: interpreters as they were told, installed or found."""
    pythons = {
        name: getattr(found, name)
        or (interpreters.install(found.install, name) if found.install else interpreters.default(name))
        for name in interpreters.PACKAGES
    }
    return Setup(**pythons, quick=quick)


def options() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(ROWS), help=f"rows, of {', '.join(ROWS)}")
    parser.add_argument("--quick", action="store_true", help="one launch and half the turns: coarser")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    add_peers(parser)
    found = parser.parse_args()
    found.only = found.only.split(",")
    unknown = [name for name in found.only if name not in ROWS]
    if unknown:
        parser.error(f"--only: there is no row {', '.join(unknown)}; the rows are {', '.join(ROWS)}")
    return found


def main() -> None:
    """Measures, prints the tables and the RESULT lines."""
    arguments = options()
    rows, failed = measured(arguments.only, setup_of(arguments, arguments.quick))
    results = {name: value for row in rows for name, value in row.results.items()}
    targets = ratios.load(ratios.STORED).targets
    cells = [
        (name, f"{value:.3f}", f"{least:.3f} to {most:.3f}", _verdict(value, targets.get(name)))
        for name, (value, least, most) in results.items()
    ]
    print_table("results", ("", "value", "launches", "target"), cells)
    for name, (value, _, _) in results.items():
        print(f"RESULT {name} {value:.3f}")
    if arguments.json:
        arguments.json.write_text(json.dumps({name: value for name, (value, _, _) in results.items()}, indent=1))
    sys.exit("\n".join(failed) if failed else 0)


def _verdict(value: float, target: float | None) -> str:
    if target is None:
        return ""
    return f"<= {target:g}" + ("" if value <= target else ": missed")


if __name__ == "__main__":
    main()
