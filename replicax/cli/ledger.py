"""`replicax ledger`: where the time of a job went."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from replicax.errors import ArgumentError, LaunchError
from replicax.errors.exit_codes import ExitCode
from replicax.tools.ledger import read
from replicax.tools.ledger.showing import picture, table, words, write_trace


def ledger(
    log_dir: Annotated[Path, typer.Argument(metavar="LOG_DIR", help="The job's folder for logs.")],
    png: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw it: PNG, SVG or PDF.")] = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a trace, which ui.perfetto.dev shows.")
    ] = None,
) -> None:
    """Shows where the time of each worker went, what has cost the job most, and how long it would take without that.

    It reads the folder `ledger` that `replicax run` writes to its --log-dir, also while the job runs. Each second of a
    worker is in exactly one row.
    """
    try:
        found = read(log_dir)
        if png is not None:
            picture(found, png)
        if trace is not None:
            write_trace(found, trace)
    except (LaunchError, ArgumentError, OSError) as error:
        typer.echo(f"replicax ledger: {error}", err=True)
        raise typer.Exit(ExitCode.USAGE) from error
    Console().print(table(found))
    for line in words(found):
        typer.echo(line)
    for path in filter(None, (png, trace)):
        typer.echo(f"Written: {path}")
