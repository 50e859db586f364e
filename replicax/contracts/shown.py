"""Text that a notebook shows as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape


class Shown(str):
    """A text to be printed. A notebook shows it with its line breaks, or as `html`.

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


def joined(*parts: Shown) -> Shown:
    """Returns tables below each other."""
    return Shown("\n\n".join(parts), "".join(part.html for part in parts))


def in_columns(rows: Sequence[Sequence[str]]) -> str:
    """Returns rows of words as text, in columns; sizes in bytes are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if cell.endswith(" bytes") else cell.ljust(width)
            for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in rows
    )


def html_table(headings: Sequence[str], rows: Sequence[Sequence[object]], caption: str = "") -> str:
    """Returns a table as HTML. Ints are aligned to the right and have thousands separators."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def html_facts(title: str, facts: Mapping[str, object]) -> str:
    """Returns a table with a name and a value in each line as HTML. A `Shown` value is shown as it is."""
    cells = {name: _cell(value if isinstance(value, Shown) else str(value)) for name, value in facts.items()}
    rows = "".join(f'<tr><th style="text-align: left">{escape(name)}</th>{cell}</tr>' for name, cell in cells.items())
    return f"<table><caption>{escape(title)}</caption><tbody>{rows}</tbody></table>"


def _cell(value: object) -> str:
    if isinstance(value, int):
        return f'<td style="text-align: right">{value:,}</td>'
    text = value.html if isinstance(value, Shown) else escape(str(value))
    return f'<td style="text-align: left">{text}</td>'
