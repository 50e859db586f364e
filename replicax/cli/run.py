"""`replicax run`: a script as a cluster of processes, on this machine or elsewhere."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from replicax.checks import environment_names
from replicax.cli.job_file import ARGUMENTS, MODULE, SCRIPT, read_job_file
from replicax.errors import ClusterError, ClusterTimeoutError, LaunchError, RemoteWorkerError
from replicax.errors.exit_codes import ExitCode, from_signal
from replicax.job.launching import (
    Options,
    join,
    launch,
    parse_elastic,
    parse_hosts,
    parse_variables,
    parse_workers,
)


def _read_config(ctx: typer.Context, path: Path | None) -> Path | None:
    """Makes what a job file says the defaults of all options that are not on the command line."""
    if path is None:
        return None
    try:
        ctx.default_map = job_defaults(ctx.command, path)
    except LaunchError as error:
        typer.echo(f"replicax run: {error}", err=True)
        raise typer.Exit(ExitCode.USAGE) from error
    return path


def job_defaults(command: Any, path: Path, text: str | None = None) -> dict[str, Any]:
    """Returns the defaults that a job file, or `text` in its place, gives to the parameters of a command of typer's."""
    parameters = {SCRIPT: "command", ARGUMENTS: "command", MODULE: "module"}
    flags = {SCRIPT: False, ARGUMENTS: False, MODULE: True}
    for parameter in command.params:
        for name in parameter.opts:
            if name.startswith("--") and parameter.name not in ("config", "help"):
                parameters[name[2:]], flags[name[2:]] = str(parameter.name), getattr(parameter, "is_flag", False)
    found = read_job_file(path, flags, text)
    if ARGUMENTS in found and SCRIPT not in found:
        raise LaunchError(f"{path} has arguments and no script.")
    defaults: dict[str, Any] = {parameters[name]: value for name, value in found.items()}
    if SCRIPT in found:
        defaults["command"] = [found[SCRIPT], *found.get(ARGUMENTS, [])]
    if "hosts" in found:
        defaults["hosts"] = ",".join(found["hosts"])
    return defaults


Config = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        is_eager=True,
        callback=_read_config,
        help="A job file (YAML): these options by name, and `script`, `arguments`. The command line counts before it.",
    ),
]
Command = Annotated[
    list[str] | None,
    typer.Argument(metavar="SCRIPT [ARGUMENTS]", show_default=False, help="The script that each worker runs."),
]
IsModule = Annotated[bool, typer.Option("-m", help="SCRIPT is the name of a module, as with `python -m`.")]
Workers = Annotated[
    str | None,
    typer.Option(
        metavar="N or MIN:MAX",
        help="How many workers. A range lets the job go on with fewer.",
        show_default="1, or one for each host",
    ),
]
On = Annotated[
    str | None,
    typer.Option("--on", metavar="ADDRESS", help="Run the workers on a Ray cluster: auto, host:port, ray://host:port."),
]
Hosts = Annotated[
    str | None,
    typer.Option(metavar="HOST,HOST", help="Run a worker at each of these servers (`replicax server`)."),
]
Env = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME[=VALUE]", help="A variable for workers elsewhere; may be given several times."),
]
StartTimeout = Annotated[
    float, typer.Option(metavar="SECONDS", help="How long to wait for servers and room elsewhere.")
]
DevicesPerWorker = Annotated[
    int, typer.Option(metavar="N", envvar="JAX_NUM_CPU_DEVICES", help="Virtual CPU devices in each worker.")
]
Servers = Annotated[
    int,
    typer.Option(metavar="N", help="Parameter servers. The script runs once, and starts them and the workers."),
]
WithEvaluator = Annotated[bool, typer.Option("--evaluator", help="Start an evaluator beside the workers.")]
AsIslands = Annotated[
    bool, typer.Option("--islands", help="A lost worker is started again alone: for strategies of islands.")
]
Elastic = Annotated[
    str | None,
    typer.Option(
        metavar="MIN:MAX",
        help="Workers in step may come and go: a lost one is started again alone, and the others go on, at least MIN.",
    ),
]
At = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="HOST[:PORT]",
        help="With --elastic: where workers on other machines join. With it --workers may be 0.",
    ),
]
Join = Annotated[
    str | None,
    typer.Option(
        "--join",
        metavar="HOST:PORT or DIR",
        envvar=environment_names.JOIN,
        help="Run one more worker of an elastic job, given its --address or, on this machine, its folder for logs.",
    ),
]
Restarts = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Start all tasks again after a failure, N times; with --islands and --elastic, the lost one.",
        show_default="0; with --elastic as often as needed",
    ),
]
LogDir = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Folder for one log a task.", show_default="a new one in runs/"),
]
GracePeriod = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="Time from SIGTERM to SIGKILL, for the survivors of a failure and when the job is told to end.",
        show_default="5 for survivors, 30 when told to end",
    ),
]


def run(
    command: Command = None,
    config: Config = None,
    module: IsModule = False,
    workers: Workers = None,
    on: On = None,
    hosts: Hosts = None,
    env: Env = None,
    start_timeout: StartTimeout = 120.0,
    devices_per_worker: DevicesPerWorker = 1,
    ps: Servers = 0,
    evaluator: WithEvaluator = False,
    islands: AsIslands = False,
    elastic: Elastic = None,
    address: At = None,
    joins: Join = None,
    restarts: Restarts = None,
    log_dir: LogDir = None,
    grace: GracePeriod = None,
) -> None:
    """Runs a script as several workers, on this machine or elsewhere, with TF_CONFIG and JAX's variables set for each.

    Each line of output starts with its worker's name; worker 0 shows the progress bar. When a worker fails, the others
    are ended, and its traceback is shown last and alone: those of the others are in the logs. With --ps the script runs
    in one process, the coordinator, whose ParameterServerStrategy finds the numbers of servers and workers (the smaller
    one of a range). The exit code is that of the first worker that failed: 70 stalled, 71 another worker was gone, 72
    programs differ, 75 saved and to be resumed, 128 + n for signal n.

    With --islands a worker that is lost is started again alone, --restarts times in all, and the others go on: for
    rx.LocalSGDStrategy(elastic=True) and rx.DiLoCoStrategy(elastic=True). With --elastic MIN:MAX so is one of
    workers in step: for rx.MultiWorkerMirroredStrategy(elastic=...). With --join the script is one more worker of such
    a job that runs already, here or on another machine.

    With --config these options come from a job file, which `replicax config` writes.

    With --on and --hosts the workers run on other machines, which need REPLICAX_TOKEN in common with this one. The
    Python files in the script's folder travel with it; data must be there. The job ends with this command, however that
    ends.
    """
    del config  # `_read_config` has read it.
    try:
        options, start = checked_job(
            command, module, workers, on, hosts, env, start_timeout, devices_per_worker, ps, evaluator, islands,
            elastic, address, joins, restarts, log_dir, grace,
        )  # fmt: skip
        code = start(options)
    except (LaunchError, ClusterError, ClusterTimeoutError) as error:
        typer.echo(f"replicax run: {error}", err=True)
        code = ExitCode.USAGE
    except RemoteWorkerError as error:  # Between two attempts.
        typer.echo(f"replicax run: {error}", err=True)
        code = ExitCode.PEER_LOST
    except KeyboardInterrupt:  # While it waited for the workers' machines.
        code = from_signal(signal.SIGINT)
    raise typer.Exit(code)


def checked_job(
    command: list[str] | None,
    module: bool,
    workers: str | None,
    on: str | None,
    hosts: str | None,
    env: list[str] | None,
    start_timeout: float,
    devices_per_worker: int,
    ps: int,
    evaluator: bool,
    islands: bool,
    elastic: str | None,
    address: str | None,
    joins: str | None,
    restarts: int | None,
    log_dir: Path | None,
    grace: float | None,
) -> tuple[Options, Callable[[Options], int]]:
    """Returns the job that options of the command line describe, and what runs it; nothing has started yet."""
    script, *arguments = command or [""]
    named = parse_hosts(hosts) if hosts is not None else ()
    range_of_members = None if elastic is None else parse_elastic(elastic)
    usual = len(named) if range_of_members is None else range_of_members.most
    fewest, most = parse_workers(workers if workers is not None else str(usual or 1))
    options = Options(
        script,
        tuple(arguments),
        module=module,
        workers=most,
        min_workers=fewest,
        devices_per_worker=devices_per_worker,
        ps=ps,
        evaluator=evaluator,
        islands=islands,
        elastic=range_of_members,
        address=address,
        restarts=restarts,
        grace=grace,
        log_dir=log_dir,
    )
    variables = parse_variables(env or [], os.environ)
    here = on is None and hosts is None
    if options.goes_on and not here:
        which = "--islands" if islands else "--elastic"
        raise LaunchError(f"{which} is for workers on this machine: leave out --on and --hosts.")
    if joins is not None:
        _check_join(workers, options, on, hosts)
        return options, lambda options: join(options, joins, start_timeout)
    if here and variables:
        raise LaunchError("--env is for workers elsewhere. Workers here inherit the environment: set it there.")
    if here:
        return options, lambda options: launch(options)

    from replicax.job.launching.remote_job import (
        Elsewhere,
        check_elsewhere,
        launch_elsewhere,
    )  # Only here: it brings JAX and Ray.

    elsewhere = Elsewhere(on, named, variables, start_timeout)
    check_elsewhere(options, elsewhere)
    return options, lambda options: launch_elsewhere(options, elsewhere)


def _check_join(workers: str | None, options: Options, on: str | None, hosts: str | None) -> None:
    given = {
        "--workers": workers is not None,
        "--elastic": options.elastic is not None,
        "--islands": options.islands,
        "--ps": options.ps > 0,
        "--evaluator": options.evaluator,
        "--on": on is not None,
        "--hosts": hosts is not None,
    }
    wrong = [name for name, is_given in given.items() if is_given]
    if wrong:
        raise LaunchError(f"--join starts one worker of a job that runs already: leave out {', '.join(wrong)}.")
