"""`python -m tests.browser`: looks at each page of the site that `make docs` has built, and prints what is wrong.

Pictures go into `site-check/`: each page at three widths, in light and in dark. Ends with 1 where something is wrong.
"""

from __future__ import annotations

import argparse
import shutil
import sys

from tests.browser.checking import ROOT, problems_of
from tests.browser.chromium import installed_executable


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.browser", description=__doc__)
    parser.add_argument("--only", default="", help="the pages whose address contains this")
    arguments = parser.parse_args()
    site, pictures = ROOT / "site", ROOT / "site-check"
    if not (site / "index.html").is_file():
        sys.exit(f"{site} has no index.html: `make docs` builds it")
    if not arguments.only:
        shutil.rmtree(pictures, ignore_errors=True)
    found = problems_of(site, installed_executable(), pictures, arguments.only)
    for page, problems in found.items():
        for problem in problems:
            print(f"/{page}: {problem}")
    print(f"Looked at {len(found)} pages; the pictures are in {pictures}")
    wrong = sum(map(bool, found.values()))
    print(f"RESULT pages_with_problems {wrong}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
