"""A hook for MkDocs: makes a page of each notebook, with the outputs that are stored in it. It runs nothing."""

from __future__ import annotations

import base64
import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")  # colours
_IMAGES = {"image/png": ".png", "image/svg+xml": ".svg"}
_FENCE = "`" * 4
_COLUMNS = 88


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Adds a page, and its pictures, for each notebook; the notebook itself stays, to be downloaded."""
    for file in list(files):
        if file.src_uri.endswith(".ipynb"):
            text, pictures = page_of(json.loads(file.content_string), PurePosixPath(file.src_uri).stem)
            folder = PurePosixPath(file.src_uri).parent
            page = str(PurePosixPath(file.src_uri).with_suffix(".md"))
            files.append(File.generated(config, page, content=text))
            for name, content in pictures.items():
                files.append(File.generated(config, str(folder / name), content=content))
    return files


def page_of(notebook: dict[str, Any], name: str) -> tuple[str, dict[str, bytes]]:
    """Returns a notebook as Markdown, and the pictures that it shows, by their names.

    Args:
        notebook: The notebook, as it is stored.
        name: Its name, with which those of the pictures begin.
    """
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for number, cell in enumerate(notebook["cells"]):
        source = _joined(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        elif cell["cell_type"] == "code":
            parts.append(_fenced(source, "python"))
            parts += _outputs(cell["outputs"], f"{name}-{number}", pictures)
    title, _, rest = parts[0].partition("\n")
    download = f"[Download this notebook :material-download:]({name}.ipynb){{ .notebook-file }}"
    return "\n\n".join([title, download, rest.strip("\n"), *parts[1:]]), pictures


def _outputs(outputs: list[dict[str, Any]], name: str, pictures: dict[str, bytes]) -> Iterator[str]:
    for number, output in enumerate(outputs):
        kind = output["output_type"]
        if kind == "stream":
            text = _joined(output["text"])
            if output["name"] == "stderr":  # Warnings, in long lines; what is printed may be a table.
                text = "\n".join(part for line in text.splitlines() for part in textwrap.wrap(line, _COLUMNS) or [""])
            yield _text(text)
        elif kind == "error":
            yield _text("\n".join(output["traceback"]))
        else:
            yield _shown(output["data"], output.get("metadata", {}), f"{name}-{number}", pictures)


def _shown(data: dict[str, Any], metadata: dict[str, Any], name: str, pictures: dict[str, bytes]) -> str:
    """Returns a result in the best of its formats."""
    for kind, ending in _IMAGES.items():
        if kind in data:
            content = _joined(data[kind])
            pictures[name + ending] = base64.b64decode(content) if kind == "image/png" else content.encode()
            width = metadata.get(kind, {}).get("width")
            size = f" width={width}" if width else ""
            return f"![The picture that the cell above draws]({name}{ending}){{ .notebook-picture{size} }}"
    if "text/html" in data:  # In one line: an empty one would end the block of HTML.
        html = re.sub(r"\s*\n\s*", "&#10;" if "<pre" in _joined(data["text/html"]) else " ", _joined(data["text/html"]))
        return f'<div class="notebook-result">{html}</div>'
    return _text(_joined(data["text/plain"]))


def _text(text: str) -> str:
    return _fenced(_ESCAPES.sub("", text).strip("\n"), "{ .text .notebook-text }")


def _fenced(text: str, language: str) -> str:
    return f"{_FENCE}{language}\n{text}\n{_FENCE}"


def _joined(lines: str | list[str]) -> str:
    return lines if isinstance(lines, str) else "".join(lines)
