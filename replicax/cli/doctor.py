"""`replicax doctor`: what stands in the way of training here."""

from __future__ import annotations

import json
import os
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from replicax.errors.exit_codes import ExitCode
from replicax.tools.doctor import DoctorReport, Finding, Severity, choose, diagnose, find_devices

_STYLES = {Severity.OK: "green", Severity.WARN: "yellow", Severity.FAIL: "bold red"}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with a fixed schema.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Leave out the all-reduce of two processes.")] = False,
    choosing: Annotated[
        bool, typer.Option("--choose", help="Say which strategy and which command fit this machine, and stop.")
    ] = False,
    parameters: Annotated[
        float | None, typer.Option(help="With --choose: the model's number of parameters, such as 7e9.", min=1)
    ] = None,
    hosts: Annotated[int, typer.Option(help="With --choose: how many such hosts there are.", min=1)] = 1,
) -> None:
    """Looks at what training needs: versions, devices, the cluster, names and ports, clock, disk, an all-reduce.

    Run it where a worker will run, with the same environment. The exit code is 1 if anything fails, otherwise 0.
    """
    if choosing:
        _choose(parameters, hosts, as_json)
        return
    diagnosis = diagnose(quick=quick)
    if as_json:
        typer.echo(json.dumps(diagnosis.as_dict(), indent=2))
    else:
        _print(diagnosis, Console(highlight=False))
    raise typer.Exit(diagnosis.exit_code)


def _choose(parameters: float | None, hosts: int, as_json: bool) -> None:
    found = find_devices(os.environ)
    if isinstance(found, Finding):
        typer.echo(f"{found.text}\n{found.cure}", err=True)
        raise typer.Exit(ExitCode.FAILED)
    choice = choose(found, hosts, parameters)
    if as_json:
        typer.echo(json.dumps(choice._asdict(), indent=2))
        return
    typer.echo("\n".join(choice.reasons))
    typer.echo(f"\nin the script   strategy = {choice.strategy}\nto start it     {choice.command}")


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
