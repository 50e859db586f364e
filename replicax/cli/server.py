"""`replicax server`: one task of a cluster on this machine, which waits for what it is sent."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from replicax.cluster import ClusterSpec, TFConfigClusterResolver
from replicax.errors import ClusterError, ClusterTimeoutError
from replicax.errors.exit_codes import ExitCode
from replicax.ray_cluster import Server


def server(
    cluster: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="The addresses of all tasks.", show_default="that of TF_CONFIG"),
    ] = None,
    job: Annotated[
        str | None, typer.Option(metavar="JOB", help="ps, worker or chief.", show_default="TF_CONFIG")
    ] = None,
    index: Annotated[
        int | None, typer.Option(metavar="N", help="Index of the task in its job.", show_default="TF_CONFIG")
    ] = None,
    dashboard: Annotated[bool, typer.Option(help="Whether the head shows Ray's dashboard, at 127.0.0.1:8265.")] = True,
) -> None:
    """Serves one coordinator or client after another, until Ctrl-C or SIGTERM.

    The cluster is `{"worker": ["host1:2222", "host2:2222"]}`: synchronous workers for a client on another machine.
    With parameter servers it is `{"worker": ["host1:2222"], "ps": ["host0:2222"]}`. All tasks and whoever uses them
    must have the same REPLICAX_TOKEN in their environment. The head, Ray's first node (ps 0; without parameter servers
    the chief or worker 0), holds the cluster together; the others wait for it and end with it.
    """
    try:
        task = Server(_read(cluster), job, index, dashboard=dashboard)
    except (ClusterError, ClusterTimeoutError) as error:
        typer.echo(f"replicax server: {error}", err=True)
        raise typer.Exit(ExitCode.USAGE) from error
    typer.echo(f"{task.name} serves. Ctrl-C ends it.")
    task.join()


def _read(cluster: str | None) -> TFConfigClusterResolver | ClusterSpec:
    if cluster is None:
        return TFConfigClusterResolver()
    try:
        document = json.loads(cluster)
    except ValueError as error:
        raise ClusterError(
            "--cluster", cluster, f"is not JSON: {error}", 'Write {"worker": [...], "ps": [...]}.'
        ) from None
    return ClusterSpec.from_json(document)
