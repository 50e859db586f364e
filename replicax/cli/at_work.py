"""Says what a command is doing, so that it is never silent for long."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


@contextlib.contextmanager
def at_work(console: Console, what: str, every_s: float = 2.0) -> Iterator[Callable[[str], None]]:
    """Shows what is done while a `with` block runs: on a terminal always, elsewhere in a line every `every_s` seconds.

    Yields a function to call with what is done from now on.
    """
    if console.is_interactive:
        columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
        with Progress(*columns, console=console, transient=True) as shown:
            task = shown.add_task(what, total=None)
            yield lambda what: shown.update(task, description=what)
        return

    now, is_over = [what], threading.Event()

    def say() -> None:
        while not is_over.wait(every_s):
            console.print(f"… {now[-1]}", markup=False, soft_wrap=True)

    speaker = threading.Thread(target=say, name="replicax-at-work", daemon=True)
    speaker.start()
    try:
        yield now.append
    finally:
        is_over.set()
        speaker.join()
