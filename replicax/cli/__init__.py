"""The command line. Importing it loads nothing: each command loads what it needs when it runs."""


def main() -> None:
    """Runs the command `replicax` with the arguments of this process."""
    from replicax.cli.app import app

    app()


__all__ = ["main"]
