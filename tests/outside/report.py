"""Compares each public program on one device and on eight, and counts what had to be edited.

python tests/outside/report.py [name ...]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.outside.cases import CASES, TOLERANCE, Case  # noqa: E402
from tests.outside.comparing import PROGRAMS, compare  # noqa: E402
from tests.outside.forms import edited_lines  # noqa: E402

ROW = "{:24}{:18}{:>12}{:>10}{:>7}{:>8}  {}"


def report(cases: list[Case]) -> bool:
    """Prints a row for each case and the figures of all; returns whether all are equal."""
    print(ROW.format("program", "style", "parameters", "losses", "edits", "seconds", ""))
    equal, edits = 0, []
    for case in cases:
        began = time.monotonic()
        try:
            found = compare(case.name)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            print(f"{case.name} failed: {error}", flush=True)
            continue
        edits.append(edited_lines((PROGRAMS / f"{case.name}.py").read_text()))
        equal += found.is_equal(TOLERANCE)
        figures = f"{found.parameters:.1e}", f"{found.losses:.1e}", edits[-1], f"{time.monotonic() - began:.1f}"
        verdict = "" if found.is_equal(TOLERANCE) else "DIFFERS"
        print(ROW.format(case.name, case.style, *figures, verdict), flush=True)
    print(f"RESULT outside_programs {len(cases)}")
    print(f"RESULT outside_equal {equal}")
    print(f"RESULT outside_edited_lines {statistics.median(edits or [0]):g}")
    return equal == len(cases)


if __name__ == "__main__":
    names = sys.argv[1:] or [case.name for case in CASES]
    chosen = [case for case in CASES if case.name in names]
    for case in chosen:
        if not case.can_run:
            print(f"{case.name} is left out: it needs {case.needs}")
    sys.exit(not report([case for case in chosen if case.can_run]))
