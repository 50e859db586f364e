"""The table of `Strategy.explain`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from replicax.shown import Shown, html_table


class Explained(NamedTuple):
    """A line of the table.

    Attributes:
        name: A variable's path.
        shape: Its shape.
        where: How it is laid out, or where it is.
        bytes: Its bytes on each device.
        why: Why it is so, where it may surprise; or empty.
    """

    name: str
    shape: str
    where: str
    bytes: int
    why: str = ""

    def __str__(self) -> str:
        why = f"  ({self.why})" if self.why else ""
        return f"{self.name}  {self.shape}  {self.where}  {self.bytes} bytes{why}"


def explanation(rows: Sequence[Explained]) -> Shown:
    """Returns the lines as text, and as a table for a notebook."""
    headings = ("variable", "shape", "layout", "bytes", "why")
    if not any(row.why for row in rows):
        return Shown("\n".join(map(str, rows)), html_table(headings[:-1], [row[:-1] for row in rows]))
    return Shown("\n".join(map(str, rows)), html_table(headings, rows))
