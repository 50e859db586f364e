"""How a notebook becomes a page of the site."""

from __future__ import annotations

import base64
import importlib.util

import pytest

from tests.notebooks.executing import ROOT

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def page_of():
    pytest.importorskip("mkdocs")
    spec = importlib.util.spec_from_file_location("notebook_pages", ROOT / "docs" / "notebook_pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.page_of


def code(source: str, *outputs: dict) -> dict:
    return {"cell_type": "code", "source": source, "outputs": list(outputs)}


def result(metadata: dict | None = None, **data: str) -> dict:
    found = {name.replace("_", "/"): value for name, value in data.items()}
    return {"output_type": "execute_result", "data": found, "metadata": metadata or {}}


def test_cells_and_all_kinds_of_outputs(page_of):
    picture = base64.b64encode(b"PNG").decode()
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "Words."]},
        code("1 / 0", {"output_type": "error", "traceback": ["\x1b[31mZeroDivisionError\x1b[39m: division"]}),
        code("print(1)", {"output_type": "stream", "name": "stdout", "text": ["1\n", "2\n"]}),
        code("warn()", {"output_type": "stream", "name": "stderr", "text": "a warning of words " * 20}),
        code("plot()", result({"image/png": {"width": 300}}, image_png=picture, text_plain="<Figure>")),
        code("table", result(text_html="<table>\n\n<tr></tr></table>", text_plain="table")),
        code("3", result(text_plain="3")),
    ]
    page, pictures = page_of({"cells": cells}, "name")
    assert page.startswith("# Title\n\n[Download this notebook :material-download:](name.ipynb)")
    assert "\n\nWords.\n\n````python\n1 / 0\n````\n\n" in page
    assert "\nZeroDivisionError: division\n" in page
    assert "{ .text .notebook-text }\n1\n2\n````" in page
    assert max(map(len, page.splitlines())) <= 120
    assert pictures == {"name-4-0.png": b"PNG"}
    assert "](name-4-0.png){ .notebook-picture width=300 }" in page
    assert '<div class="notebook-result"><table> <tr></tr></table></div>' in page
    assert page.endswith("{ .text .notebook-text }\n3\n````")
