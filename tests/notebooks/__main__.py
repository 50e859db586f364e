"""`python -m tests.notebooks`: runs all notebooks; with `--write` it stores their new outputs in them.

Ends with 1 where a notebook fails.
"""

from __future__ import annotations

import argparse
import sys
import time

from nbclient.exceptions import CellExecutionError

from tests.notebooks.executing import NOTEBOOKS, executed, write


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.notebooks", description=__doc__)
    parser.add_argument("--write", action="store_true", help="store the outputs in the notebooks")
    parser.add_argument("--only", default="", help="the notebooks whose name contains this")
    arguments = parser.parse_args()
    done = failed = 0
    for path in NOTEBOOKS:
        if arguments.only not in path.name:
            continue
        start = time.monotonic()
        try:
            write(path) if arguments.write else executed(path)
        except CellExecutionError as error:
            failed += 1
            print(f"{path.name} failed:\n{error}")
        else:
            done += 1
            print(f"{path.name}: {time.monotonic() - start:.0f} s")
    print(f"RESULT notebooks_executed {done}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
