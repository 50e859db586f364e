"""The table of `Strategy.explain` of what a compiled step sends between devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import jax

from replicax.collectives.hlo import axes_of_groups, collectives
from replicax.contracts.shown import Shown, html_table, in_columns


def traffic(compiled: jax.stages.Compiled, what: str, mesh: Mapping[str, int]) -> Shown:
    """Returns a table of the collectives of a compiled program, those of a kind along the same axes in one line."""
    found: Counter[tuple[str, str]] = Counter()
    num_bytes: Counter[tuple[str, str]] = Counter()
    for each in collectives(compiled.as_text() or ""):
        axes = axes_of_groups(each.groups, tuple(mesh.values()))
        along = " x ".join(list(mesh)[axis] for axis in axes) if axes else "some devices"
        found[each.kind, along] += 1
        num_bytes[each.kind, along] += each.num_bytes
    caption = f"collectives of {what}, with the bytes that each device has of them"
    rows = [(*key, count, num_bytes[key]) for key, count in sorted(found.items())]
    if not rows:
        return Shown(f"{caption}: none")
    rows.append(("total", "", found.total(), num_bytes.total()))
    cells = [(kind, along and f"over {along}", str(count), f"{size} bytes") for kind, along, count, size in rows]
    headings = ("collective", "over", "number", "bytes")
    return Shown(f"{caption}:\n{in_columns(cells)}", html_table(headings, rows, caption))
