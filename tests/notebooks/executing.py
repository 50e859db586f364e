"""Runs a notebook in a kernel of its own, and compares its outputs with those that are stored in it."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import nbformat
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
SECONDS = 280  # for a cell; pytest gives up after 300
WIDEST = 88  # columns of a line of code, as on the pages
_WHERE = re.compile(re.escape(f"{ROOT}{os.sep}"))


def executed(path: Path) -> NotebookNode:
    """Returns a notebook with the outputs of a run in an empty folder.

    Raises:
        nbclient.exceptions.CellExecutionError: A cell has failed that is not there to fail (tag `raises-exception`).
    """
    import nbclient  # in the extra `nightly`

    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        client = nbclient.NotebookClient(
            notebook,
            timeout=SECONDS,
            startup_timeout=SECONDS,
            coalesce_streams=True,
            record_timing=False,
            resources={"metadata": {"path": folder}},
        )
        client.execute(env={name: value for name, value in os.environ.items() if name != "MPLBACKEND"})
    return notebook


def write(path: Path) -> None:
    """Runs a notebook and stores the outputs in it; the pages show them."""
    notebook = executed(path)
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if output.output_type == "stream":
                output.text = _WHERE.sub("", output.text)
            elif output.output_type == "error":
                output.traceback = [_WHERE.sub("", line) for line in output.traceback]
    notebook.metadata.pop("widgets", None)
    notebook.metadata.language_info = {"name": "python"}
    nbformat.write(notebook, path)


def kinds_of_outputs(notebook: NotebookNode) -> list[list[str]]:
    """Returns the kinds of outputs of each cell of code: streams, errors by their class, results by their formats.

    Text on standard error may be a remark of a library about this machine, so it does not count.
    """
    return [list(_kinds(cell)) for cell in notebook.cells if cell.cell_type == "code"]


def _kinds(cell: NotebookNode) -> Iterator[str]:
    for output in cell.outputs:
        if output.output_type == "stream":
            if output.name == "stdout":
                yield "text"
        elif output.output_type == "error":
            yield output.ename
        else:
            yield ", ".join(sorted(output.data))
