"""`replicax template`: manifests for real clusters."""

from __future__ import annotations

import secrets
from typing import Annotated, Any

import typer

from replicax.errors import LaunchError
from replicax.exit_codes import ExitCode
from replicax.launch import templates
from replicax.launch.templates import Cluster

template = typer.Typer(help="Print what starts a script on a real cluster.", no_args_is_help=True)
# What follows the script belongs to the script, whatever it looks like.
_SETTINGS = {"allow_interspersed_args": False}
_TOKEN_BYTES = 16

Command = Annotated[
    list[str] | None,
    typer.Argument(metavar="SCRIPT [ARGUMENTS]", show_default=False, help="What each worker runs."),
]
Name = Annotated[str, typer.Option(metavar="NAME", help="What the job is called.")]
Workers = Annotated[int, typer.Option(metavar="N", help="Workers, one on each pod or node.")]
Devices = Annotated[int, typer.Option(metavar="N", help="Virtual CPU devices in each worker, where it has no GPUs.")]
Gpus = Annotated[int, typer.Option(metavar="N", help="GPUs for each worker.")]
Restarts = Annotated[int, typer.Option(metavar="N", help="Failures that are tried again.")]


@template.command(context_settings=_SETTINGS)
def kubernetes(
    command: Command = None,
    name: Name = Cluster.name,
    workers: Workers = Cluster.workers,
    devices: Devices = Cluster.devices,
    gpus: Gpus = Cluster.gpus,
    restarts: Restarts = Cluster.restarts,
    image: Annotated[str, typer.Option(metavar="IMAGE", help="A container image with script and replicax.")] = (
        Cluster.image
    ),
) -> None:
    """Prints an Indexed Job with its service and secret, for `kubectl apply`."""
    cluster = _cluster(command, name=name, workers=workers, devices=devices, gpus=gpus, restarts=restarts, image=image)
    typer.echo(templates.kubernetes(cluster, secrets.token_hex(_TOKEN_BYTES)), nl=False)


@template.command(context_settings=_SETTINGS)
def slurm(
    command: Command = None,
    name: Name = Cluster.name,
    workers: Workers = Cluster.workers,
    devices: Devices = Cluster.devices,
    gpus: Gpus = Cluster.gpus,
    restarts: Restarts = Cluster.restarts,
) -> None:
    """Prints a batch script, for `sbatch`."""
    cluster = _cluster(command, name=name, workers=workers, devices=devices, gpus=gpus, restarts=restarts)
    typer.echo(templates.slurm(cluster), nl=False)


def _cluster(command: list[str] | None, **options: Any) -> Cluster:
    script, *arguments = command or [""]
    try:
        return Cluster(script, tuple(arguments), **options)
    except LaunchError as error:
        typer.echo(f"replicax template: {error}", err=True)
        raise typer.Exit(ExitCode.USAGE) from error
