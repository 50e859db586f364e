"""Counts the words of the documentation: `python -m tests.words`. A page that is too long is not read.

Words are what `wc -w` counts, code and tables included, in README.md and in the pages of `docs/`. Two
reference lists that programs write are counted apart: the names on the API pages, with signatures and summaries
(`docs/api_text.py`, from docstrings), and the examples (`benchmarks/gallery.py --page`, from docstrings and output).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests import prose

ROOT = Path(__file__).resolve().parent.parent
# A name on an API page, in a comment, with what is written below it.
_GENERATED = re.compile(r"^<!-- ::: .*?^<!-- end -->$", re.MULTILINE | re.DOTALL)
MOST_WORDS, MOST_WORDS_OF_A_GUIDE, MOST_LINES_OF_README = 40_000, 1_800, 130


def words_by_page() -> dict[str, int]:
    """Returns the number of words of each page that somebody has written, the longest first."""
    counted = {name: len(text.split()) - len(_written(name, text).split()) for name, text in _pages()}
    return dict(sorted(counted.items(), key=lambda item: -item[1]))


def reference_words() -> int:
    """Returns the number of words of the reference lists."""
    return sum(len(_written(name, text).split()) for name, text in _pages())


def _written(name: str, text: str) -> str:
    """Returns what of a page a program has written."""
    return text if name == "docs/examples.md" else "\n".join(_GENERATED.findall(text))


def _pages() -> Iterator[tuple[str, str]]:
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        yield str(page.relative_to(ROOT)), page.read_text()


def main() -> int:
    """Prints the longest pages, and the figures that have limits."""
    pages = words_by_page()
    guides = {name: count for name, count in pages.items() if name.startswith("docs/guides/")}
    for name, count in list(pages.items())[:10]:
        print(f"{count:6,} {name}")
    lines, problems = len((ROOT / "README.md").read_text().splitlines()), len(list(prose.faults()))
    print(f"RESULT readme_lines {lines}")
    print(f"RESULT doc_words {sum(pages.values())}")
    print(f"RESULT reference_words {reference_words()}")
    print(f"RESULT longest_guide_words {max(guides.values())}")
    print(f"RESULT style_problems {problems}")
    return (
        lines > MOST_LINES_OF_README
        or sum(pages.values()) > MOST_WORDS
        or max(guides.values()) > MOST_WORDS_OF_A_GUIDE
        or problems > 0
    )


if __name__ == "__main__":
    raise SystemExit(main())
