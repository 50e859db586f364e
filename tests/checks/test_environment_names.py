"""There is one list of environment variables; what cannot import it repeats a name, and only that."""

from __future__ import annotations

import re
from pathlib import Path

import replicax
from replicax.checks import environment_names

PACKAGE = Path(replicax.__file__).parent
LITERAL = re.compile(r'["\'](REPLICAX_[A-Z_]+)["\']')
# These run before the package can be imported.
ALONE = {
    "job/processes/child.py": {"NEWS", "LEDGER"},
    "ray_cluster/node_reaper.py": {"RAY_FOLDER"},
    "testing/behind_cable.py": {"PROCESS_ID"},
}


def test_names_stand_in_the_list_only():
    found = {
        path.relative_to(PACKAGE).as_posix(): set(LITERAL.findall(path.read_text(encoding="utf-8")))
        for path in PACKAGE.rglob("*.py")
    }
    found["cluster/resolvers/own.py"] = set()  # in the example of a docstring
    listed = found.pop("checks/environment_names.py")
    assert listed == {value for name, value in vars(environment_names).items() if name.isupper()}
    assert {file: names - {"REPLICAX_"} for file, names in found.items() if names - {"REPLICAX_"}} == {
        file: {f"REPLICAX_{name}" for name in names} for file, names in ALONE.items()
    }
