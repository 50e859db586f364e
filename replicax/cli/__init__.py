"""The command line. Importing it loads nothing: each command loads what it needs when it runs."""

import io
import signal
import sys


def main() -> None:
    """Runs the command `replicax` with the arguments of this process."""
    from replicax.cli.app import app

    print_anywhere()
    for name in ("SIGTERM", "SIGHUP"):  # Windows has no terminal that hangs up.
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:  # It ends as by Ctrl-C: it cleans up.
            signal.signal(number, lambda number, frame: sys.exit(128 + number))
    app()


def print_anywhere() -> None:
    """Makes characters that a stream cannot encode question marks: on Windows a pipe takes only its country's."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


__all__ = ["main"]
