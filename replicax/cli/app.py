"""The command `replicax`: its subcommands and the options that they share."""

from __future__ import annotations

import importlib
import itertools
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import replicax as rx

_LOOKS: dict[str, Any] = {
    "add_completion": False,
    "rich_markup_mode": "markdown",
    "pretty_exceptions_enable": False,  # A traceback is for the bug report: leave it as Python prints it.
}
# Everything after the script belongs to the script, whatever it looks like.
_TAKES_SCRIPT = {"allow_interspersed_args": False}
#: The settings of each subcommand: the function, or Typer's group of them, of that name in the module of that name.
_SUBCOMMANDS: dict[str, dict[str, Any]] = {
    "demo": {},
    "doctor": {},
    "run": _TAKES_SCRIPT,
    "config": {},
    "server": {},
    "members": {},
    "plan": {"ignore_unknown_options": True},
    "profile": _TAKES_SCRIPT,
    "migrate": {},
    "certify": {},
    "ledger": {},
    "template": {},
    "ckpt": {},
}


class _Command(TyperCommand):
    """A subcommand, of a script and its arguments or of none."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        left = super().parse_args(ctx, args)
        script, *arguments = ctx.params.get("command") or [""]
        own = {name for option in self.params for name in option.opts if name.startswith("--")}
        given = [each for each in itertools.takewhile("--".__ne__, arguments) if each.partition("=")[0] in own]
        if given:
            typer.echo(
                f"replicax {self.name}: {script} gets {', '.join(given)}, which stands after its name. Options of "
                f"replicax {self.name} stand before it.",
                err=True,
            )
        return left


def subcommand(name: str) -> Any:
    """Returns a subcommand for Click. Its module is loaded now: no command waits for what another one needs."""
    found = getattr(importlib.import_module(f"replicax.cli.{name}"), name)
    alone = typer.Typer(**_LOOKS)
    if isinstance(found, typer.Typer):
        alone.add_typer(found, name=name)
    else:
        alone.command(name, cls=_Command, context_settings=_SUBCOMMANDS[name])(found)
    return typer.main.get_group(alone).commands[name]


class _Subcommands(TyperGroup):
    """The subcommands, each loaded when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(_SUBCOMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return subcommand(cmd_name) if cmd_name in _SUBCOMMANDS else None


app = typer.Typer(
    name="replicax",
    cls=_Subcommands,
    help="Distributed training for Keras 3 and plain JAX.",
    no_args_is_help=True,
    **_LOOKS,
)


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
