"""`replicax run`: a script as a cluster of processes, on this machine or elsewhere."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from replicax.checks import environment_names
from replicax.errors import ClusterError, ClusterTimeoutError, LaunchError, RemoteWorkerError
from replicax.errors.exit_codes import ExitCode, from_signal


def _read_config(ctx: typer.Context, path: Path | None) -> Path | None:
    """Makes what a job file says the defaults of all options that are not on the command line."""
    if path is None:
        return None
    from replicax.cli.job import job_defaults

    try:
        ctx.default_map = job_defaults(ctx.command, path)
    except LaunchError as error:
        typer.echo(f"replicax run: {error}", err=True)
        raise typer.Exit(ExitCode.USAGE) from error
    return path


Config = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        is_eager=True,
        callback=_read_config,
        help="A job file (YAML): these options by name, and `script`, `arguments`. "
        "Command-line options override the file.",
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
    typer.Option(metavar="NAME[=VALUE]", help="A variable for workers on other machines; may be given several times."),
]
StartTimeout = Annotated[
    float, typer.Option(metavar="SECONDS", help="How long to wait for servers and free resources on other machines.")
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
        help="Synchronous workers may come and go: a lost one is restarted alone; the others go on, at least MIN.",
    ),
]
At = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="HOST",
        hidden=True,
        help="With --elastic: where workers that have networks of their own, such as containers, reach this machine.",
    ),
]
Join = Annotated[str | None, typer.Option("--join", envvar=environment_names.JOIN, hidden=True)]
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
    typer.Option(metavar="DIR", help="Folder with one log per task.", show_default="a new one in runs/"),
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
    """Runs a script as several workers, on this machine or others, with TF_CONFIG and JAX's variables set for each.

    Each line of output starts with its worker's name; worker 0 shows the progress bar. When a worker fails, the others
    are ended, and its traceback is shown last and alone: those of the others are in the logs. With --ps the script runs
    in one process, the coordinator, whose ParameterServerStrategy finds the numbers of servers and workers (the smaller
    one of a range). The exit code is that of the first worker that failed: 70 stalled, 71 another worker was gone, 72
    programs differ, 75 saved and to be resumed, 128 + n for signal n.

    With --islands a lost worker is restarted alone, --restarts times in all, and the others go on: for
    rx.LocalSGDStrategy(elastic=True) and rx.DiLoCoStrategy(elastic=True). With --elastic MIN:MAX, a lost worker of a
    synchronous job is restarted alone too: for rx.MultiWorkerMirroredStrategy(elastic=...). With --on or --hosts
    workers join such a job whenever a machine of the Ray cluster has free resources; `ray start` adds a machine.

    With --config these options come from a job file, which `replicax config` writes.

    With --on and --hosts the workers run on other machines, which need REPLICAX_TOKEN in common with this one. The
    Python files in the script's folder travel with it; data must be there. The job ends with this command, however that
    ends.
    """
    del config  # `_read_config` has read it.
    from replicax.cli.job import checked_job  # Only now: the page of --help comes without it.

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
