"""Says what a command is doing, so that it is never silent for long."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


@contextlib.contextmanager
def at_work(console: Console, what: str, every_s: float = 2.0) -> Iterator[Callable[[str], None]]:
    """Shows what is done while a `with` block runs: on a terminal always, elsewhere in a line every `every_s` seconds.

    A line that would only repeat the one before tells how long that lasts. Yields a function to call with what is done
    from now on.
    """
    if console.is_interactive:
        columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
        with Progress(*columns, console=console, transient=True) as shown:
            task = shown.add_task(what, total=None)
            yield lambda what: shown.update(task, description=what)
        return

    now, is_over = (what, time.monotonic()), threading.Event()

    def show(what: str) -> None:
        nonlocal now
        if what != now[0]:
            now = (what, time.monotonic())

    def say() -> None:
        said = ""
        while not is_over.wait(every_s):
            what, since = now
            lasts = f", {time.monotonic() - since:.0f} s" if what == said else ""
            console.print(f"… {what}{lasts}", markup=False, soft_wrap=True)
            said = what

    speaker = threading.Thread(target=say, name="replicax-at-work", daemon=True)
    speaker.start()
    try:
        yield show
    finally:
        is_over.set()
        speaker.join()
