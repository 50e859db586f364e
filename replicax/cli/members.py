"""`replicax members`: the workers of an elastic job over time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from replicax.errors import LaunchError
from replicax.errors.exit_codes import ExitCode
from replicax.job.membership_history import read_history
from replicax.tools.plots.membership import bars, summary, svg, table

_PICTURE = "members.svg"


def members(
    log_dir: Annotated[Path, typer.Argument(metavar="LOG_DIR", help="The job's folder for logs.")],
    picture: Annotated[
        Path | None,
        typer.Option("--svg", metavar="FILE", help="Where the picture goes.", show_default=f"LOG_DIR/{_PICTURE}"),
    ] = None,
) -> None:
    """Shows who took part in an elastic job when, and why that changed: as a table, as bars, and as a picture (SVG).

    A world is a period with a fixed set of members. It reads members.jsonl, which `replicax run --elastic` writes to
    its --log-dir, also while the job runs.
    """
    try:
        history = read_history(log_dir)
        place = picture or (log_dir if log_dir.is_dir() else log_dir.parent) / _PICTURE
        place.write_text(svg(history, f"Members of {log_dir.resolve().name} over time"), encoding="utf-8")
    except (LaunchError, OSError) as error:
        typer.echo(f"replicax members: {error}", err=True)
        raise typer.Exit(ExitCode.USAGE) from error
    typer.echo(f"{table(history)}\n\n{bars(history)}\n\n{summary(history)}\nPicture: {place}")
