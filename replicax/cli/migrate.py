"""`replicax migrate`: TensorFlow scripts become scripts of replicax, Keras 3 and JAX."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from replicax.errors import ArgumentError
from replicax.errors.exit_codes import ExitCode
from replicax.tensorflow.codemod.files import Source, read, scripts
from replicax.tensorflow.proof.proving import prove, tensorflow_python
from replicax.tensorflow.proof.running import RunFailedError

if TYPE_CHECKING:
    from replicax.tensorflow.codemod.conversion import Conversion

#: The exit code when a script could not be run, so that nothing was compared.
_NOT_RUN = 3


def migrate(
    paths: Annotated[list[Path], typer.Argument(metavar="SCRIPT...", show_default=False, help="Scripts, or folders.")],
    write: Annotated[bool, typer.Option("--write", help="Replace the scripts by what they are converted to.")] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Print a diff for `patch`; the findings go to stderr.")] = False,
    keep_tf_data: Annotated[
        bool, typer.Option("--keep-tf-data", help="Leave pipelines of tf.data: TensorFlow stays installed for input.")
    ] = False,
    proof: Annotated[
        bool, typer.Option("--prove", help="Run SCRIPT on TensorFlow and what it was converted to, and compare.")
    ] = False,
    python: Annotated[
        Path | None, typer.Option("--tensorflow-python", help="For --prove: an interpreter that has TensorFlow.")
    ] = None,
    steps: Annotated[int, typer.Option(help="For --prove: how many training steps are compared.")] = 20,
    replicas: Annotated[str, typer.Option(help="For --prove: on how many replicas, such as 1 or 1,8.")] = "1,8",
    arguments: Annotated[str, typer.Option(help="For --prove: the arguments of both scripts.")] = "",
    legacy_keras: Annotated[bool, typer.Option(help="For --prove: whether `tf.keras` is Keras 2.")] = False,
) -> None:
    """Converts scripts of tf.distribute and Keras to replicax, Keras 3 and JAX.

    Without an option it prints what would change, and the findings: the places that it leaves as they are, below a
    comment, since they need a hand edit. The exit code is 0 if there is none, 1 if there are some, and 2 if a file
    cannot be read or parsed. Converting twice changes nothing.

    `--prove train.py converted.py` runs the first training steps of both, on one device and on eight, from the same
    initial values and batches, and prints the first tensor that differs. The exit code is 0 if none does, 1 if one
    does, and 3 if a script could not be run, so that nothing is known.
    """
    if proof:
        _prove(paths, python, steps, arguments, legacy_keras, replicas)
    if write and diff:
        raise typer.BadParameter("--write and --diff exclude each other.")
    edits, failures = 0, 0
    try:
        found = list(dict.fromkeys(scripts(paths)))
    except ArgumentError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(ExitCode.USAGE) from error
    for path in found:
        try:
            edits += _migrate(read(path), write, diff, keep_tf_data)
        except ArgumentError as error:
            typer.echo(str(error), err=True)
            failures += 1
    if failures:
        raise typer.Exit(ExitCode.USAGE)
    if edits:
        raise typer.Exit(ExitCode.FAILED)


def _migrate(source: Source, write: bool, diff: bool, keep_tf_data: bool) -> int:
    """Converts one script and returns the number of hand edits that it needs."""
    conversion = _converted(source, keep_tf_data)
    if write and conversion.after != conversion.before:
        source.replace(conversion.after)
    if not write:
        typer.echo("".join(_diff(source.path, conversion)), nl=False)
    _print_findings(source.path, conversion, written=write, errors=diff)
    return len(conversion.edits)


def _converted(source: Source, keep_tf_data: bool) -> Conversion:
    try:
        from replicax.tensorflow.codemod.conversion import convert
    except ImportError as error:
        raise ArgumentError("`replicax migrate` needs libcst and ruff: pip install 'replicax[migrate]'.") from error
    return convert(source.text, str(source.path), "keep" if keep_tf_data else "convert")


def _diff(path: Path, conversion: Conversion) -> list[str]:
    before, after = (text.splitlines(keepends=True) for text in (conversion.before, conversion.after))
    return list(difflib.unified_diff(before, after, f"a/{path}", f"b/{path}"))


def _print_findings(path: Path, conversion: Conversion, written: bool, errors: bool) -> None:
    for each in conversion.findings:
        typer.echo(f"{path}:{each.line}: {each.severity}: {each.name}: {each.reason}", err=errors)
    edits = len(conversion.edits)
    if conversion.before == conversion.after:
        done = "nothing to convert"
    else:
        done = "converted" if written else "would be converted"
    needs = f"; {edits} place{'s' * (edits != 1)} to edit by hand" if edits else ""
    typer.echo(f"{path}: {done}{needs}", err=errors)


def _prove(
    paths: Sequence[Path], python: Path | None, steps: int, arguments: str, legacy_keras: bool, replicas: str
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
        raise typer.Exit(_NOT_RUN) from error
    if any(each.difference and not each.is_inconclusive for each in verdicts):
        raise typer.Exit(ExitCode.FAILED)
    raise typer.Exit(_NOT_RUN if any(each.is_inconclusive for each in verdicts) else ExitCode.OK)
