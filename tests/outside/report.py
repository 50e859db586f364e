"""Compares each public program on one device and on eight, and counts what had to be edited.

python tests/outside/report.py [name ...]
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.outside.cases import CASES, Case  # noqa: E402
from tests.outside.comparing import PROGRAMS, compare  # noqa: E402
from tests.outside.forms import edited_lines  # noqa: E402

ROW = "{:24}{:18}{:>9}{:>12}{:>10}{:>7}{:>8}  {}"


def report(cases: list[Case]) -> bool:
    """Prints a row for each case and the figures of all; returns whether all are equal."""
    print(ROW.format("program", "style", "dtype", "parameters", "losses", "edits", "seconds", ""))
    equal, edits = 0, []
    for case in cases:
        began = time.monotonic()
        found = compare(case.name, float64=bool(case.float64))
        edits.append(edited_lines((PROGRAMS / f"{case.name}.py").read_text()))
        equal += found.is_equal(case.tolerance)
        figures = f"{found.parameters:.1e}", f"{found.losses:.1e}", edits[-1], f"{time.monotonic() - began:.1f}"
        dtype = "float64" if case.float64 else "float32"
        verdict = "" if found.is_equal(case.tolerance) else "DIFFERS"
        print(ROW.format(case.name, case.style, dtype, *figures, verdict), flush=True)
    print(f"RESULT outside_programs {len(cases)}")
    print(f"RESULT outside_equal {equal}")
    print(f"RESULT outside_edited_lines {statistics.median(edits):g}")
    return equal == len(cases)


if __name__ == "__main__":
    names = sys.argv[1:] or [case.name for case in CASES]
    chosen = [case for case in CASES if case.name in names]
    for case in chosen:
        if not case.can_run:
            print(f"{case.name} is left out: it needs {case.needs}")
    sys.exit(not report([case for case in chosen if case.can_run]))
