"""`replicax profile`: which operations of a script take the time."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from replicax.errors import ClusterError, LaunchError
from replicax.errors.exit_codes import ExitCode
from replicax.job.launching import Options, launch
from replicax.tools.profiling import INPUT, hot_spots, traces

_STEPS = re.compile(r"(?P<first>[1-9]\d*)(:(?P<last>[1-9]\d*))?")

Command = Annotated[
    list[str] | None,
    typer.Argument(metavar="SCRIPT [ARGUMENTS]", show_default=False, help="The script that each worker runs."),
]
Steps = Annotated[str, typer.Option(metavar="FIRST:LAST", help="The steps to trace, from 1. The first ones compile.")]
Workers = Annotated[int, typer.Option(metavar="N", help="How many workers.")]
Devices = Annotated[int, typer.Option("--devices-per-worker", metavar="N", help="Virtual CPU devices in each worker.")]
Out = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder for the traces.", show_default="a new one in runs/")
]
Most = Annotated[int, typer.Option(metavar="N", help="How many operations the table has.")]


def profile(
    command: Command = None,
    steps: Steps = "11:15",
    workers: Workers = 1,
    devices: Devices = 1,
    out: Out = None,
    most: Most = 12,
) -> None:
    """Traces a few steps of a script on all its workers; shows which operations took the time, and what input took.

    A step is one call of a compiled program: of an rx.function, or a step of Model.fit. The script runs to its end.
    Each worker's trace opens in Perfetto (ui.perfetto.dev), and the folder in XProf (TensorBoard's profile plugin).
    """
    script, *arguments = command or [""]
    try:
        first, last = _parsed(steps)
        if not script or not Path(script).is_file():
            raise LaunchError(f"There is no file {script!r}. Write: replicax profile train.py")
        folder = (out or Path("runs") / time.strftime("profile-%Y%m%d-%H%M%S")).absolute()
        if folder.exists() and any(folder.iterdir()):
            raise LaunchError(f"{folder} is not empty. Choose another folder with --out.")
        told = (str(first), str(last), str(folder), script, *arguments)
        traced = Options(
            "replicax.tools.profiling.traced", told, module=True, workers=workers, devices_per_worker=devices,
            log_dir=folder / "logs",
        )  # fmt: skip
        code = launch(traced)
        _show(folder, first, last, most)
    except (LaunchError, ClusterError) as error:
        typer.echo(f"replicax profile: {error}", err=True)
        code = ExitCode.USAGE
    raise typer.Exit(code)


def _parsed(steps: str) -> tuple[int, int]:
    found = _STEPS.fullmatch(steps.strip())
    first, last = (int(found["first"]), int(found["last"] or found["first"])) if found else (0, 0)
    if not 1 <= first <= last:
        raise LaunchError(f"--steps is FIRST:LAST, counted from 1, got {steps!r}.")
    return first, last


def _show(folder: Path, first: int, last: int, most: int) -> None:
    found, console = traces(folder), Console()
    if not found:
        raise LaunchError(f"No worker has come to step {first}, so there is no trace in {folder}.")
    for name, trace in found.items():
        table = Table(title=f"{name}: steps {first} to {last}", title_justify="left")
        for column in ("operation", "program"):
            table.add_column(column, overflow="fold")
        for column in ("calls", "ms", "share"):
            table.add_column(column, justify="right")
        for spot in hot_spots(trace, most):
            milliseconds, share = f"{1000 * spot.seconds:,.2f}", f"{spot.share:.1%}"
            table.add_row(spot.operation, spot.program, f"{spot.calls:,}", milliseconds, share)
        console.print(table)
        if (taken := folder / name / INPUT).is_file():
            console.print(f"{name}'s input: {taken.read_text(encoding='utf-8')}", markup=False, soft_wrap=True)
    console.print("Open a trace at https://ui.perfetto.dev:", markup=False)
    for trace in found.values():
        console.print(f"  {trace}", markup=False, soft_wrap=True)
    console.print(f"or all of them: pip install xprof && xprof {folder}", markup=False, soft_wrap=True)
