"""`replicax migrate --prove`: what the option does."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import typer

from replicax.errors import ArgumentError
from replicax.errors.exit_codes import ExitCode
from replicax.tensorflow.proof.proving import prove, tensorflow_python
from replicax.tensorflow.proof.running import RunFailedError

#: The exit code when a script could not be run, so that nothing was compared.
NOT_RUN = 3


def run(
    paths: Sequence[Path], python: Path | None, steps: int, arguments: str, legacy_keras: bool, replicas: str = "1,8"
) -> None:
    """Proves a conversion, prints what was found, and ends the command: it never returns."""
    if len(paths) != 2:
        raise typer.BadParameter("--prove needs two scripts: the one for TensorFlow, and what it was converted to.")
    script, converted = paths
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", replicas):
        raise typer.BadParameter(f"--replicas {replicas!r}: give numbers with commas between them, such as 1,8.")
    try:
        verdicts = prove(
            script,
            converted,
            python=tensorflow_python(python),
            steps=steps,
            arguments=shlex.split(arguments),
            replicas=[int(count) for count in replicas.split(",")],
            legacy_keras=legacy_keras,
            say=typer.echo,
            progress=partial(typer.echo, err=True),
        )
    except ArgumentError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(ExitCode.USAGE) from error
    except RunFailedError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(NOT_RUN) from error
    if any(each.difference and not each.is_inconclusive for each in verdicts):
        raise typer.Exit(ExitCode.FAILED)
    raise typer.Exit(NOT_RUN if any(each.is_inconclusive for each in verdicts) else ExitCode.OK)
