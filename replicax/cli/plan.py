"""`replicax plan`: will a script fit, what will it send, how long will a step take, on devices that need not exist."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from replicax.errors import ArgumentError, PlanError
from replicax.errors.exit_codes import ExitCode
from replicax.planning.calibration import calibrate
from replicax.planning.process import KINDS, TIMEOUT_S, Script, planned
from replicax.planning.report import Plan
from replicax.planning.search import Candidate, searched
from replicax.planning.topologies import Topology

#: The exit code where a step does not fit.
DOES_NOT_FIT = 3
#: Options may stand behind the script; what is none of ours is the script's.

Command = Annotated[
    list[str] | None,
    typer.Argument(metavar="SCRIPT [ARGUMENTS]", show_default=False, help="The script, as it is."),
]
On = Annotated[
    str | None,
    typer.Option(
        metavar="DEVICES",
        help="Devices: v5e:4x4, v5p:2x2x2 or v6e:16x16 (TPUs), gpu:8x80GiB, cpu:64.",
        show_default=False,
    ),
]
Hosts = Annotated[
    int | None, typer.Option(metavar="N", help="How many hosts gpu: or cpu: devices belong to.", show_default=False)
]
Steps = Annotated[str, typer.Option(metavar="KINDS", help="The kinds of steps to plan: train, predict, or both.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Search = Annotated[
    bool, typer.Option("--search", help="Try other strategies, layouts, meshes, remat and accumulation, and rank them.")
]
Jobs = Annotated[
    int | None, typer.Option(metavar="N", help="How many ways --search plans at a time.", show_default=False)
]
Calibrate = Annotated[
    bool, typer.Option("--calibrate", help="Measure this machine first, and keep that: cpu: plans then tell times.")
]
Plot = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Draw memory over the step, PNG, SVG or PDF.", show_default=False)
]
Whole = Annotated[
    bool, typer.Option("--whole", help="Wait for the code of TPUs, too: minutes, and its size is all that it adds.")
]
Timeout = Annotated[float, typer.Option(metavar="SECONDS", help="How long the script may take to its step.")]


def plan(
    on: On = None,
    command: Command = None,
    hosts: Hosts = None,
    steps: Steps = KINDS[0],
    as_json: Json = False,
    is_search: Search = False,
    jobs: Jobs = None,
    is_calibration: Calibrate = False,
    plot: Plot = None,
    whole: Whole = False,
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """Runs a script, unchanged, on devices that need not exist, and reports on its first training step.

    Arrays have no values there, so a model of any size is planned in little memory. The step is compiled for the
    devices: for TPUs by their own compiler (pip install 'replicax[plan]'), and the script ends. The script's output
    goes to standard error. Exit codes: 0 if the step fits, 3 if not, 2 if it cannot be planned.
    """
    script, *arguments = command or [""]
    try:
        if is_calibration:
            typer.echo(calibrate().table())
            if on is None and not command:
                return
        if on is None:
            raise PlanError("Say for which devices: --on v5e:4x4, --on gpu:8x80GiB or --on cpu:64.")
        wanted = [kind.strip() for kind in steps.split(",")]
        if not set(wanted) <= set(KINDS) or len(set(wanted)) != len(wanted):
            raise PlanError(f"--steps are {', '.join(KINDS)} or both with a comma between, got {steps!r}.")
        if not script:
            raise PlanError(f"Say which script trains: replicax plan train.py --on {on}")
        if not Path(script).is_file():
            raise PlanError(f"There is no file {script!r}. Write: replicax plan train.py --on v5e:4x4")
        topology = Topology.of(on, hosts)
        if is_search:
            if wanted != [KINDS[0]]:
                raise PlanError(f"--search ranks training steps; leave out --steps {steps!r}.")
            found = _search(Script(script, arguments), topology, jobs, timeout, as_json)
        else:
            found = planned(topology, Script(script, arguments), steps=wanted, timeout=timeout, whole=whole)
            typer.echo(
                json.dumps([each.as_dict() for each in found], indent=2) if as_json else "\n\n".join(map(str, found))
            )
        if plot is not None:
            for each in found:
                each.plot(plot.with_stem(f"{plot.stem}-{each.kind}") if len(found) > 1 else plot)
    except (PlanError, ArgumentError) as error:
        typer.echo(f"replicax plan: {error}", err=True)
        raise typer.Exit(ExitCode.USAGE) from None
    raise typer.Exit(ExitCode.OK if found and all(each.fits for each in found) else DOES_NOT_FIT)


def _search(script: Script, on: Topology, jobs: int | None, timeout: float, as_json: bool) -> list[Plan]:
    """Prints a ranking; returns the plan of the best that fits, if there is one."""
    with typer.progressbar(length=1, label="planning", file=sys.stderr) as bar:

        def told(done: int, known: int, candidate: Candidate) -> None:
            bar.length = known
            bar.label = f"{candidate.variation}"
            bar.update(done - bar.pos)

        found = searched(lambda variation: script, on, jobs=jobs, timeout=timeout, told=told)
    typer.echo(json.dumps(found.as_dict(), indent=2) if as_json else str(found))
    return [found.best.plan] if found.best is not None and found.best.plan is not None else []
