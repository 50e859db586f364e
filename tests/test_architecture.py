"""`docs/architecture.md` says which room lies in which layer, and what to open; it is compared with the code."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/architecture.md").read_text()
PACKAGE = ROOT / "replicax"
MOST_LINES = 250
MOST_WORDS_OF_OURS = 60
# Files, and functions behind them, as `program/function.py` or `cluster/rendezvous.py`.
FILE = re.compile(r"`((?:\w+/)*\w+\.py|(?:\w+/)+)`")


def layers() -> list[set[str]]:
    """Returns the rooms of each layer, from the top, as import-linter holds them."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    found = next(each for each in contracts if each["id"] == "layers")["layers"]
    return [set(layer.replace(" ", "").split(":")) for layer in found]


def test_every_room_is_in_the_table_in_its_layer():
    table = PAGE.partition("| Layer | Room |")[2].partition("\n\n")[0]
    rows: list[set[str]] = []
    for layer, names in re.findall(r"^\|([\w ]*)\| (`.*?) \|", table, re.MULTILINE):
        if layer.strip():
            rows.append(set())
        rows[-1] |= set(re.findall(r"`(\w+)`", names))
    beside = {"__main__", "moved", "config", "typing", "version"}
    assert rows == [layer - beside for layer in layers()]


def test_the_picture_shows_the_layers():
    picture = PAGE.partition("```text")[2].partition("```")[0]
    shown = [set(re.findall(r"\b[a-z_]{3,}\b", line)) for line in picture.splitlines()]
    for layer in layers():
        rooms = layer - {"__main__", "moved", "config", "typing", "version"}
        assert any(rooms <= line for line in shown), rooms


def test_what_the_page_says_to_open_is_there():
    missing = []
    for line in PAGE.splitlines():
        room = ""
        for name in FILE.findall(line):
            found = (PACKAGE / name).exists() or (ROOT / name).exists()
            if "/" in name:
                room = name.rpartition("/")[0]
            if not (found or (PACKAGE / room / name).exists() or list(PACKAGE.rglob(name.rstrip("/")))):
                missing.append(name)
    assert missing == []


def test_the_page_stays_short():
    assert len(PAGE.splitlines()) <= MOST_LINES
    assert len(re.findall(r"^\| ", PAGE.partition("## Glossary")[2], re.MULTILINE)) - 2 <= MOST_WORDS_OF_OURS
