"""The command `replicax`: its subcommands and the options that they share."""

from __future__ import annotations

from typing import Annotated

import typer

import replicax as rx
from replicax.cli.ckpt import ckpt
from replicax.cli.config import config
from replicax.cli.demo import demo
from replicax.cli.doctor import doctor
from replicax.cli.members import members
from replicax.cli.migrate import migrate
from replicax.cli.plan import SETTINGS as OF_PLAN, plan
from replicax.cli.profile import profile
from replicax.cli.run import SETTINGS, run
from replicax.cli.server import server
from replicax.cli.template import template

app = typer.Typer(
    name="replicax",
    help="Distributed training for Keras 3 and plain JAX.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,  # A traceback is for the bug report: leave it as Python prints it.
)
app.command()(demo)
app.command()(doctor)
app.command(context_settings=SETTINGS)(run)
app.command()(config)
app.command()(server)
app.command()(members)
app.command(context_settings=OF_PLAN)(plan)
app.command(context_settings=SETTINGS)(profile)
app.command()(migrate)
app.add_typer(template, name="template")
app.add_typer(ckpt, name="ckpt")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"replicax {rx.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Distributed training for Keras 3 and plain JAX."""
