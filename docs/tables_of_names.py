"""A hook for MkDocs: puts the tables of names into a page, from the rows in `replicax/tensorflow/names/`."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from replicax.tensorflow.names import Row
from replicax.tensorflow.names.cluster import CLUSTER
from replicax.tensorflow.names.dtensor import DTENSOR
from replicax.tensorflow.names.estimator import ESTIMATOR
from replicax.tensorflow.names.outside_distribute import BESIDE
from replicax.tensorflow.names.strategies import STRATEGIES
from replicax.tensorflow.names.values import VALUES
from replicax.tensorflow.names.variables import VARIABLES

PLACE = "<!-- The tables of names -->"
SECTIONS = {
    "Strategies and contexts": STRATEGIES,
    "Values, datasets, communication": VALUES,
    "Clusters, coordinators, preemption": CLUSTER,
    "DTensor": DTENSOR,
    "Variables, losses, checkpoints": VARIABLES,
    "Estimator": ESTIMATOR,
    "The rest of TensorFlow, and older names": BESIDE,
}


def on_page_markdown(markdown: str, **_: object) -> str:
    """Returns a page with the tables where it has the place for them."""
    if PLACE not in markdown:
        return markdown
    return markdown.replace(PLACE, "\n".join(f"### {title}\n\n{table(rows)}" for title, rows in SECTIONS.items()))


def table(rows: Mapping[str, Row]) -> str:
    """Returns a table in Markdown, with one line for names of one owner of which the same is said."""
    lines = ["| TensorFlow | replicax | |", "| --- | --- | --- |"]
    for _, group in itertools.groupby(rows.items(), key=_what_is_said):
        lines.append(_line(list(group)))
    return "\n".join(lines) + "\n"


def _what_is_said(item: tuple[str, Row]) -> tuple[Any, ...]:
    name, row = item
    owner, _, member = name.rpartition(".")
    here, _, there = row.here.rpartition(".")
    return owner, row.kind, row.note, _said_of_keywords(row), here, True if there == member else there


def _line(group: list[tuple[str, Row]]) -> str:
    name, row = group[0]
    members = [other.rpartition(".")[2] for other, _ in group]
    theirs = ", ".join(f"`{member}`" for member in (name, *members[1:]))
    ours = (
        ", ".join(
            f"`{'rx.' * (not i)}{each.here if not i else each.here.rpartition('.')[2]}`"
            for i, (_, each) in enumerate(group)
        )
        if row.here
        else ""
    )
    said = " ".join(filter(None, [f"*{row.kind}*" + (":" if row.note else ""), row.note, _said_of_keywords(row)]))
    return f"| {theirs} | {ours} | {said} |"


def _said_of_keywords(row: Row) -> str:
    by_note: dict[str, list[str]] = {}
    for name, keyword in row.keywords.items():
        only = ", ".join(f"`{value!r}`" for value in keyword.accepted or ())
        how = "accepted, without effect" if keyword.accepted is None else f"only {only}" if only else "refused"
        said = f"`{keyword.here}` here" if keyword.here else f"{how} ({keyword.note.rstrip('.')})"
        by_note.setdefault(said, []).append(f"`{name}`")
    return "; ".join(f"{', '.join(names)}: {said}" for said, names in by_note.items())
