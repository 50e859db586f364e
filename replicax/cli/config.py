"""`replicax config`: a job file, made by asking."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from replicax.cli.app import subcommand
from replicax.cli.job import checked_job, job_defaults
from replicax.cli.job_file import ARGUMENTS, SCRIPT, written_job_file
from replicax.errors import ClusterError, LaunchError
from replicax.errors.exit_codes import ExitCode
from replicax.job.launching import check_script

_HEAD = "# A job: start it with `replicax run --config {path}`. Command-line options override the file.\n"
_ASKED = (SCRIPT, "workers", "devices-per-worker", "elastic", "restarts", "log-dir")
_QUESTIONS = {
    SCRIPT: "The script that each worker runs",
    "workers": "How many workers (N, or MIN:MAX to go on with fewer)",
    "devices-per-worker": "Virtual CPU devices in each worker, where there are no GPUs",
    "elastic": "Workers may come and go: MIN:MAX (empty: no)",
    "restarts": "Starts again after a failure",
    "log-dir": "Folder for the logs (empty: a new one in runs/)",
}
_USUAL = {SCRIPT: "train.py", "workers": "2", "devices-per-worker": "1", "elastic": "", "restarts": "0", "log-dir": ""}

Path_ = Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")]
Given = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="An option of `replicax run`; may be given several times."),
]
Asks = Annotated[bool, typer.Option("--ask/--no-ask", help="Whether to ask for what --set does not say.")]
Replaces = Annotated[bool, typer.Option("--force", help="Replace a file that is there.")]


def config(path: Path_ = Path("job.yaml"), given: Given = None, ask: Asks = True, force: Replaces = False) -> None:
    """Writes a job file for `replicax run --config`, by asking, or from what --set says.

    Every option of `replicax run` may stand in it, by its name without the dashes; `script`, `arguments` and `module`
    say what runs. The file is checked like a command line before it is written.
    """
    try:
        if path.exists() and not force:
            raise LaunchError(f"{path} exists already. Choose another name, or replace it with --force.")
        settings = _given(given or [])
        if ask:
            settings = _asked(settings)
        text = _HEAD.format(path=path) + written_job_file(settings)
        _check(path, text)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.part")
        try:
            part.write_text(text, encoding="utf-8")
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except (LaunchError, ClusterError, OSError, typer.BadParameter) as error:
        said = error.format_message() if isinstance(error, typer.BadParameter) else error
        typer.echo(f"replicax config: {said}", err=True)
        raise typer.Exit(ExitCode.USAGE) from error
    typer.echo(f"{path} is written: replicax run --config {path}")


def _given(given: list[str]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals:
            raise LaunchError(f"--set takes NAME=VALUE, got {each!r}.")
        if name in (ARGUMENTS, "env", "hosts"):
            settings.setdefault(name, []).append(value)
        else:
            settings[name] = value
    return settings


def _asked(settings: dict[str, Any]) -> dict[str, Any]:
    if not sys.stdin.isatty() and SCRIPT not in settings:
        raise LaunchError("There is no terminal to ask at. Say what the file has: --no-ask --set script=train.py")
    answers = dict(settings)
    for name in _ASKED:
        if name not in answers and sys.stdin.isatty():
            answer = typer.prompt(_QUESTIONS[name], default=_USUAL[name], show_default=bool(_USUAL[name]))
            if (answer and answer != _USUAL[name]) or name in (SCRIPT, "workers"):
                answers[name] = answer
    return {name: answers[name] for name in sorted(answers, key=lambda name: name != SCRIPT)}


def _check(path: Path, text: str) -> None:
    """Checks the text of a job file as `replicax run` checks it."""
    command = subcommand("run")
    context = command.make_context("run", [], default_map=job_defaults(command, path, text))
    options, _ = checked_job(**{name: context.params[name] for name in inspect.signature(checked_job).parameters})
    if not options.script:
        raise LaunchError("No script is named. Write: replicax config --set script=train.py")
    check_script(options)
