"""`docs/architecture.md` says what each floor uses; it is compared with what its modules import."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROW = re.compile(r"^\| (`[\w`, ]+`) \| .* \| ([^|]*) \|$", re.MULTILINE)


def imported(floor: str) -> set[str]:
    """Returns the floors whose modules the modules of a floor import, at their top or in a function."""
    folder = ROOT / "replicax" / floor
    found = set()
    for file in folder.rglob("*.py") if folder.is_dir() else [folder.with_suffix(".py")]:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name.split(".")[1] for name in found if name.startswith("replicax.")}


def test_each_floor_uses_what_the_table_says():
    table = (ROOT / "docs/architecture.md").read_text().partition("| Floor |")[2]
    rows = [(re.findall(r"`(\w+)`", names), set(uses.split(", "))) for names, uses in ROW.findall(table)]
    floors = {floor for names, _ in rows for floor in names}
    modules = {path.stem for path in (ROOT / "replicax").iterdir() if path.suffix in (".py", "")}
    assert modules - floors <= {"__init__", "__main__", "__pycache__"}
    for names, said in rows:
        used = set().union(*map(imported, names)) & floors - {*names, "errors"}
        assert said in ({"any"}, used or {"nothing"}), f"{names} use {sorted(used)}, and the table says {sorted(said)}"
