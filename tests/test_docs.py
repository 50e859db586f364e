"""The Python in README.md and docs/ runs: each page's code blocks in order, in one namespace."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

import replicax as rx
from tests.each import each

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

# A fence such as: ```python {.no-run reason="needs two machines"}
_FENCE = re.compile(r"^```python(?P<info>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
_REASON = re.compile(r'reason="(?P<reason>[^"]+)"')
# What a block needs of the extra `nightly`: ```python {.needs package="mlflow"}
_PACKAGE = re.compile(r'\.needs package="(?P<name>\w+)"')

# What some pages read, which only TensorFlow can write: by name, where it lies.
_FIXTURES = ROOT / "tests" / "migrate" / "fixtures"
FILES = {
    "docs/guides/tensorflow-checkpoints.md": {
        "training": _FIXTURES / "manager" / "training",
        "saver": _FIXTURES / "saver_adam",
    }
}


class Block(NamedTuple):
    """One fenced block of Python, and where it stands."""

    line: int
    info: str
    code: str


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(text.count("\n", 0, match.start("code")) + 1, match["info"].strip(), match["code"])
        for match in _FENCE.finditer(text)
    ]


@pytest.fixture(autouse=True)
def compiled_again() -> object:
    """Pages may show `run_eagerly(True)`; the next test runs compiled."""
    yield
    rx.config.run_eagerly(False)


@pytest.mark.slow  # A page is a program of several trainings.
@pytest.mark.daily(10)
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if blocks_of(page)],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_code_blocks_run_in_order(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for name, source in FILES.get(str(page.relative_to(ROOT)), {}).items():
        shutil.copytree(source, tmp_path / name)
    namespace = {"__name__": "__main__"}
    for block in blocks_of(page):
        needed = _PACKAGE.search(block.info)
        if "no-run" in block.info or (needed and not importlib.util.find_spec(needed["name"])):
            continue
        # Empty lines in front, so that a traceback names the line of the page.
        exec(compile("\n" * (block.line - 1) + block.code, str(page), "exec"), namespace)


@pytest.mark.nightly
def test_the_packages_that_blocks_need_are_there():
    """So `make test-all` runs each block; where a package is missing, its page runs without the blocks that need it."""
    needed = {found["name"] for page in PAGES for block in blocks_of(page) if (found := _PACKAGE.search(block.info))}
    assert needed == {"mlflow"}
    for name in needed:
        pytest.importorskip(name)


def test_a_block_that_does_not_run_says_why():
    silent = [
        f"{page.relative_to(ROOT)}:{block.line}"
        for page in PAGES
        for block in blocks_of(page)
        if "no-run" in block.info and not _REASON.search(block.info)
    ]
    assert silent == []


def test_the_readme_shows_both_kinds_of_loop():
    code = "\n".join(block.code for block in blocks_of(ROOT / "README.md"))
    assert "keras" in code
    assert "optax" in code


def test_a_page_that_imports_keras_chooses_jax_for_it_first():
    """Where TensorFlow is not installed, Keras's own default fails in the first line."""
    each(PAGES, chooses_jax)


def chooses_jax(page: Path) -> None:
    for block in blocks_of(page):
        imports = [line for line in block.code.splitlines() if re.match(r"(import|from) (keras|replicax)", line)]
        if imports:
            chosen = block.code.find('os.environ.setdefault("KERAS_BACKEND", "jax")')
            assert "replicax" in imports[0] or 0 <= chosen < block.code.find(imports[0]), f"{page}:{block.line}"
            return
