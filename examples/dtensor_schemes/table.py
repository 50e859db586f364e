"""Prints what a step of each scheme sends, as the table in docs/guides/dtensor.md.

python examples/dtensor_schemes/table.py
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import data_model
import data_parallel
import embedding
import model_parallel
import sequence
import spatial
from scheme import Scheme, Training, mesh_of

from replicax.dtensor import CommunicationReport, communication

MODULES = (data_parallel, model_parallel, data_model, spatial, embedding, sequence)
HEADINGS = ("Scheme", "Mesh", "Collective", "Count", "Payload, bytes", "Sent, bytes")


def measured(scheme: Scheme) -> CommunicationReport:
    training = Training(scheme, mesh_of(scheme))
    return communication(training.step, *training.batch)


def rows_of(file_name: str, scheme: Scheme, report: CommunicationReport) -> list[tuple[str, ...]]:
    dims = ", ".join(f"{name}={size}" for name, size in scheme.mesh_dims.items())
    titles = [(f"{scheme.name} (`{file_name}`)", dims), *[("", "")] * (len(report.counts) - 1)]
    return [
        (*title, kind, str(count), f"{report.payload_bytes[kind]:,}", f"{report.sent_bytes[kind]:,}")
        for title, (kind, count) in zip(titles, report.counts.items(), strict=True)
    ]


def table(report_on: Callable[[Scheme], CommunicationReport] = measured) -> str:
    rows = [
        row
        for module in MODULES
        for row in rows_of(Path(module.__file__).name, module.SCHEME, report_on(module.SCHEME))
    ]
    rule = ("---", "---", "---", "---:", "---:", "---:")
    return "\n".join("| " + " | ".join(row) + " |" for row in (HEADINGS, rule, *rows))


if __name__ == "__main__":
    print(table())
