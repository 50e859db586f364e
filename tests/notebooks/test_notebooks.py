from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from tests.notebooks.executing import NOTEBOOKS, ROOT, WIDEST, executed, kinds_of_outputs

pytestmark = pytest.mark.nightly

SIX = {
    "chaos-in-a-box",
    "dtensor-step-by-step",
    "fit-on-eight-devices",
    "from-tf-distribute",
    "jax-loop",
    "my-loss-differs",
}


def test_all_are_there():
    assert {path.stem for path in NOTEBOOKS} == SIX


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_and_its_stored_outputs_are_of_the_kinds_that_it_has_now(path: Path):
    pytest.importorskip("nbclient")
    stored = nbformat.read(path, as_version=4)
    assert kinds_of_outputs(executed(path)) == kinds_of_outputs(stored), (
        "Run `python -m tests.notebooks --write`, and look at the outputs."
    )


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_stored_can_be_shown_anywhere(path: Path):
    text = path.read_text(encoding="utf-8")
    assert str(ROOT) not in text
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert any("image/png" in kind for kinds in kinds_of_outputs(notebook) for kind in kinds) or "<svg" in text
    lines = [line for cell in notebook.cells for line in cell.source.splitlines()]
    assert [line for line in lines if len(line) > WIDEST] == []
    assert notebook.cells[0].source.startswith("# ")
