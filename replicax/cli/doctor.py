"""`replicax doctor`: what stands in the way of training here."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from replicax.tools.doctor import DoctorReport, Finding, Severity, diagnose

_STYLES = {Severity.OK: "green", Severity.WARN: "yellow", Severity.FAIL: "bold red"}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with a fixed schema.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Leave out the all-reduce of two processes.")] = False,
) -> None:
    """Looks at what training needs: versions, devices, the cluster, names and ports, clock, disk, an all-reduce.

    Run it where a worker will run, with the same environment. The exit code is 1 if anything fails, otherwise 0.
    """
    diagnosis = diagnose(quick=quick)
    if as_json:
        typer.echo(json.dumps(diagnosis.as_dict(), indent=2))
    else:
        _print(diagnosis, Console(highlight=False))
    raise typer.Exit(diagnosis.exit_code)


def _print(diagnosis: DoctorReport, console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    table.add_column("what", no_wrap=True)
    table.add_column("found", overflow="fold")
    for finding in diagnosis.findings:
        state = Text(finding.status.name, _STYLES[finding.status])
        table.add_row(state, Text(finding.name), _words(finding))
    console.print(table)
    if diagnosis.detection is not None:
        console.print("Where this process looked for its cluster:")
        console.print(Text("\n".join(diagnosis.detection.report().splitlines()[1:])))
    counts = {status: sum(finding.status is status for finding in diagnosis.findings) for status in Severity}
    told = ", ".join(f"{count} {status.name}" for status, count in counts.items() if count)
    console.print(f"\n{told}")


def _words(finding: Finding) -> Text:
    if not finding.cure or finding.text.endswith(finding.cure):  # A ClusterError ends with its cure.
        return Text(finding.text)
    return Text.assemble(finding.text, "\n", ("-> " + finding.cure, "italic"))
