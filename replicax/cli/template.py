"""`replicax template`: manifests for real clusters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from replicax.cluster.signing import new_token
from replicax.errors import LaunchError
from replicax.errors.exit_codes import ExitCode
from replicax.job import templates
from replicax.job.templates import ClusterJob

template = typer.Typer(help="Print what starts a script on a real cluster.", no_args_is_help=True)
# Everything after the script belongs to the script, whatever it looks like.
_SETTINGS = {"allow_interspersed_args": False}

Command = Annotated[
    list[str] | None,
    typer.Argument(metavar="SCRIPT [ARGUMENTS]", show_default=False, help="The script that each worker runs."),
]
Name = Annotated[str, typer.Option(metavar="NAME", help="The job's name.")]
Workers = Annotated[int, typer.Option(metavar="N", help="Workers, one on each pod or node.")]
Devices = Annotated[int, typer.Option(metavar="N", help="Virtual CPU devices in each worker, where it has no GPUs.")]
Gpus = Annotated[int, typer.Option(metavar="N", help="GPUs for each worker.")]
Restarts = Annotated[int, typer.Option(metavar="N", help="Failures that are tried again.")]
_CPUS = "CPU cores for each worker; by default 8 for each GPU, or without GPUs 2 for each device."
_MEMORY = "Memory for each worker, such as 32G; by default 4 GB for each core."
Image = Annotated[str, typer.Option(metavar="IMAGE", help="A container image with script and replicax.  [required]")]
Cpus = Annotated[int | None, typer.Option(metavar="N", help=_CPUS)]
Memory = Annotated[str | None, typer.Option(metavar="SIZE", help=_MEMORY)]
Shm = Annotated[str, typer.Option(metavar="SIZE", help="/dev/shm, a part of that memory.")]
Machine = Annotated[str, typer.Option(metavar="TYPE", help="The machines, such as n1-standard-8.")]


@template.command(context_settings=_SETTINGS)
def kubernetes(
    command: Command = None,
    name: Name = ClusterJob.name,
    workers: Workers = ClusterJob.workers,
    devices: Devices = ClusterJob.devices,
    gpus: Gpus = ClusterJob.gpus,
    restarts: Restarts = ClusterJob.restarts,
    image: Image = "",
    cpus: Cpus = None,
    memory: Memory = None,
    shm: Shm = ClusterJob.shm,
) -> None:
    """Prints an Indexed Job with its service and secret, for `kubectl apply`."""
    options = {"name": name, "workers": workers, "devices": devices, "gpus": gpus, "restarts": restarts}
    token = new_token()
    own = {"image": image, "cpus": cpus, "memory": memory, "shm": shm}
    _print(lambda cluster: templates.kubernetes(cluster, token), command, {**options, **own})


@template.command(context_settings=_SETTINGS)
def jobset(
    command: Command = None,
    name: Name = ClusterJob.name,
    workers: Workers = ClusterJob.workers,
    devices: Devices = ClusterJob.devices,
    gpus: Gpus = ClusterJob.gpus,
    restarts: Restarts = ClusterJob.restarts,
    image: Image = "",
    cpus: Cpus = None,
    memory: Memory = None,
    shm: Shm = ClusterJob.shm,
) -> None:
    """Prints a JobSet with its secret, for `kubectl apply`: all workers start again together."""
    options = {"name": name, "workers": workers, "devices": devices, "gpus": gpus, "restarts": restarts}
    token = new_token()
    own = {"image": image, "cpus": cpus, "memory": memory, "shm": shm}
    _print(lambda cluster: templates.jobset(cluster, token), command, {**options, **own})


@template.command(context_settings=_SETTINGS)
def compose(
    command: Command = None,
    name: Name = ClusterJob.name,
    workers: Workers = ClusterJob.workers,
    devices: Devices = ClusterJob.devices,
    gpus: Gpus = ClusterJob.gpus,
    restarts: Restarts = ClusterJob.restarts,
    image: Image = "",
    memory: Memory = None,
    shm: Shm = ClusterJob.shm,
) -> None:
    """Prints a service for each worker, for `docker compose up` on one machine."""
    options = {"name": name, "workers": workers, "devices": devices, "gpus": gpus, "restarts": restarts}
    token = new_token()
    own = {"image": image, "memory": memory, "shm": shm}
    _print(lambda cluster: templates.compose(cluster, token), command, {**options, **own})


@template.command(context_settings=_SETTINGS)
def vertex(
    command: Command = None,
    name: Name = ClusterJob.name,
    workers: Workers = ClusterJob.workers,
    devices: Devices = ClusterJob.devices,
    gpus: Gpus = ClusterJob.gpus,
    image: Image = "",
    machine: Machine = "n1-standard-8",
    accelerator: Annotated[str | None, typer.Option(metavar="TYPE", help="The GPUs, such as NVIDIA_TESLA_T4.")] = None,
) -> None:
    """Prints the specification of a custom job, for `gcloud ai custom-jobs create`."""
    options = {"name": name, "workers": workers, "devices": devices, "gpus": gpus, "image": image}
    token = new_token()
    _print(lambda cluster: templates.vertex(cluster, token, machine, accelerator), command, options)


@template.command(context_settings=_SETTINGS)
def gce(
    command: Command = None,
    name: Name = ClusterJob.name,
    workers: Workers = ClusterJob.workers,
    devices: Devices = ClusterJob.devices,
    gpus: Gpus = ClusterJob.gpus,
    restarts: Restarts = ClusterJob.restarts,
    image: Image = "",
    machine: Machine = "n1-standard-8",
    zone: Annotated[str, typer.Option(metavar="ZONE", help="Where they are.")] = "us-central1-a",
    accelerator: Annotated[str | None, typer.Option(metavar="TYPE", help="The GPUs, such as nvidia-tesla-t4.")] = None,
    shm: Annotated[str, typer.Option(metavar="SIZE", help="/dev/shm of the container.")] = ClusterJob.shm,
) -> None:
    """Prints a script of gcloud commands: a machine of Compute Engine for each worker, for `bash`."""
    options = {"name": name, "workers": workers, "devices": devices, "gpus": gpus, "restarts": restarts}
    token = new_token()
    own = {"image": image, "shm": shm}
    _print(lambda cluster: templates.gce(cluster, token, machine, zone, accelerator), command, {**options, **own})


@template.command(context_settings=_SETTINGS)
def kuberay(
    command: Command = None,
    name: Name = ClusterJob.name,
    workers: Workers = ClusterJob.workers,
    devices: Devices = ClusterJob.devices,
    gpus: Gpus = ClusterJob.gpus,
    restarts: Restarts = ClusterJob.restarts,
    image: Annotated[
        str, typer.Option(metavar="IMAGE", help="A container image with script and replicax[ray].  [required]")
    ] = "",
    cpus: Cpus = None,
    memory: Memory = None,
) -> None:
    """Prints a RayJob for the KubeRay operator, for `kubectl apply`."""
    options = {"name": name, "workers": workers, "devices": devices, "gpus": gpus, "restarts": restarts}
    _print(templates.kuberay, command, {**options, "image": image, "cpus": cpus, "memory": memory})


@template.command(context_settings=_SETTINGS)
def slurm(
    command: Command = None,
    name: Name = ClusterJob.name,
    workers: Workers = ClusterJob.workers,
    devices: Devices = ClusterJob.devices,
    gpus: Gpus = ClusterJob.gpus,
    restarts: Restarts = ClusterJob.restarts,
    time: Annotated[
        str, typer.Option(metavar="TIME", help="After how long the job ends: minutes, HH:MM:SS or D-HH:MM:SS.")
    ] = ClusterJob.time,
    cpus_per_task: Annotated[int | None, typer.Option(metavar="N", help=_CPUS)] = None,
    mem: Annotated[str | None, typer.Option(metavar="SIZE", help=_MEMORY)] = None,
    partition: Annotated[str | None, typer.Option(metavar="NAME", help="By default Slurm's own.")] = None,
    setup: Annotated[
        str, typer.Option(metavar="COMMAND", help="Brings up the environment: 'source .venv/bin/activate'.")
    ] = "",
) -> None:
    """Prints a batch script, for `sbatch`."""
    options = {"name": name, "workers": workers, "devices": devices, "gpus": gpus, "restarts": restarts}
    own = {"time": time, "cpus": cpus_per_task, "memory": mem, "partition": partition, "setup": setup}
    _print(templates.slurm, command, {**options, **own})


def _print(written: Callable[[ClusterJob], str], command: list[str] | None, options: dict[str, Any]) -> None:
    script, *arguments = command or [""]
    try:
        typer.echo(written(ClusterJob(script, tuple(arguments), **options)), nl=False)
    except LaunchError as error:
        typer.echo(f"replicax template: {error}", err=True)
        raise typer.Exit(ExitCode.USAGE) from error
