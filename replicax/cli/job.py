"""The job that the options of `replicax run` describe, from the command line and from a job file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from replicax.checks.environment_names import JOIN
from replicax.cli.job_file import ARGUMENTS, MODULE, SCRIPT, read_job_file
from replicax.errors import LaunchError
from replicax.job.launching import (
    Options,
    launch,
    parse_elastic,
    parse_hosts,
    parse_variables,
    parse_workers,
)


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
    if joins is not None:
        raise LaunchError(
            f"--join {joins} (or {JOIN}) is no more: machines join an elastic job by Ray. Start the job with --elastic "
            "MIN:MAX --on HEAD:PORT, and run `ray start --address=HEAD:PORT` on each machine that is to join."
        )
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
    if here and variables:
        raise LaunchError("--env is for workers on other machines. Workers here inherit the environment: set it there.")
    if here:
        return options, lambda options: launch(options)
    # Only here: it brings JAX.
    from replicax.job.launching.remote_job import Elsewhere, check_elsewhere, launch_elsewhere

    elsewhere = Elsewhere(on, named, variables, start_timeout)
    check_elsewhere(options, elsewhere)
    return options, lambda options: launch_elsewhere(options, elsewhere)
