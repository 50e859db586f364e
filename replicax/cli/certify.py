"""`replicax certify`: does a script compute on several devices what it computes on one?"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from replicax.errors import ArgumentError, DeviceError
from replicax.errors.exit_codes import ExitCode
from replicax.keras.kept_steps import KeptFile
from replicax.runtime.devices import set_virtual_devices
from replicax.tools.certifying import Replay as Replayed, certify as certified, replay as replayed
from replicax.tools.certifying.certifying import certify_again
from replicax.tools.certifying.starting import NotRunError

Command = Annotated[
    list[str] | None,
    typer.Argument(metavar="SCRIPT [-- ARGUMENTS]", show_default=False, help="The script, and its arguments after --."),
]
Steps = Annotated[int, typer.Option(metavar="N", help="How many training steps are compared.")]
On = Annotated[
    str,
    typer.Option(metavar="TARGET,...", help="mirrored:N, fully_sharded:N, central_storage:N or workers:N."),
]
Out = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="The certificate.", show_default="SCRIPT.certificate.json, here"),
]
Check = Annotated[Path | None, typer.Option(metavar="FILE", help="Verify this certificate again.")]
Replay = Annotated[Path | None, typer.Option(metavar="FILE", help="Make the steps of ReplicaDigest(keep=...) again.")]
Devices = Annotated[
    str | None,
    typer.Option(metavar="NAME,...", help="Where they are made.", show_default="as in the training"),
]
Times = Annotated[int, typer.Option(metavar="N", help="How often they are made on devices in one order.")]
Limit = Annotated[float, typer.Option(metavar="SECONDS", help="How long each run may take.")]


def certify(
    command: Command = None,
    steps: Steps = 5,
    on: On = "mirrored:8",
    out: Out = None,
    check: Check = None,
    replay: Replay = None,
    devices: Devices = None,
    times: Times = 2,
    limit: Limit = 600.0,
) -> None:
    """Runs a script on one device and on each target, and names the first tensor that differs.

    The script's own options come after `--`. The exit code is 0 if all targets have the numbers of one device, 1 if
    one differs or the script fails there, and 2 if nothing could be compared: wrong options, or a script that fails on
    one device. The certificate is a JSON file, with a page to read beside it. `--check FILE` verifies one: its digest,
    the script's, and the numbers.

    `--replay FILE` makes steps again after which copies of variables differed, on devices that change places: is a
    device broken, or the program? The exit code is 0 if all copies are equal now, and 1 if not.
    """
    say = partial(typer.echo, err=True)
    try:
        if replay is not None:
            if command or check is not None:
                raise ArgumentError("--replay names a file, which has its program: give no SCRIPT and no --check.")
            found = _replayed(replay, devices, times, say)
            typer.echo(str(found))
            raise typer.Exit(ExitCode.OK if found.verdict == "equal" else ExitCode.FAILED)
        if check is not None:
            if command:
                raise ArgumentError("--check names a certificate, which names its script: give no SCRIPT.")
            wrong = certify_again(check, limit, say)
            for line in wrong or [f"{check}: as it says."]:
                typer.echo(line)
            raise typer.Exit(ExitCode.FAILED if wrong else ExitCode.OK)
        if not command:
            raise ArgumentError("Name the script. Write: replicax certify train.py --on mirrored:8")
        script, *arguments = command
        certificate = certified(script, steps, on, arguments, limit, say)
        path = out or Path(f"{Path(script).stem}.certificate.json")
        certificate.write(path)
    except (ArgumentError, DeviceError, NotRunError, OSError) as error:
        typer.echo(f"replicax certify: {error}", err=True)
        raise typer.Exit(ExitCode.USAGE) from error
    for outcome in certificate.outcomes:
        typer.echo(str(outcome))
    typer.echo(f"{path} and {path.with_suffix('.html')}", err=True)
    raise typer.Exit(ExitCode.OK if certificate.is_certified else ExitCode.FAILED)


def _replayed(file: Path, devices: str | None, times: int, say: Callable[[str], None]) -> Replayed:
    names = [name.strip() for name in devices.split(",")] if devices is not None else None
    kept = KeptFile.read(file)
    if kept.platform == "cpu":
        numbers = [int(name.rpartition(":")[2]) for name in names or kept.devices if name[-1:].isdigit()]
        with contextlib.suppress(DeviceError):  # JAX has started, and has the devices that it has.
            set_virtual_devices(max(number + 1 for number in [len(kept.devices) - 1, *numbers]))
    return replayed(file, names, times, say)
