"""What is returned as text, and shown as a table in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any


class Shown(str):
    """A text to be printed; a notebook shows it with its line ends, or as what `html` says.

    Args:
        text: The text.
        html: How a notebook is to show it; by default as the text is printed.

    Example:
        >>> Shown("a\\nb") == "a\\nb"
        True
    """

    html: str

    def __new__(cls, text: str, html: str = "") -> Shown:
        made = super().__new__(cls, text)
        made.html = html or f"<pre>{escape(text)}</pre>"
        return made

    def _repr_html_(self) -> str:
        return self.html


def html_table(headings: Sequence[str], rows: Sequence[Sequence[Any]], caption: str = "") -> str:
    """Returns a table as HTML; numbers stand at the right, with separators between thousands."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    if isinstance(value, int):
        return f'<td style="text-align: right">{value:,}</td>'
    return f'<td style="text-align: left">{escape(str(value))}</td>'
