"""Says what a command is doing, so that it is never silent for long."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

_SILENCE_S = 2.0


class Show(Protocol):
    """Shows what is being done now, and how much of it is done."""

    def __call__(self, what: str, done: int = 0, total: int | None = None) -> None: ...


@contextlib.contextmanager
def at_work(console: Console, what: str) -> Iterator[Show]:
    """Shows what is being done while a `with` block runs: a bar on a terminal, elsewhere a line every two seconds."""
    if console.is_interactive:
        columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(what, total=None)

            def update(what: str, done: int = 0, total: int | None = None) -> None:
                bar.update(task, description=what, completed=done, total=total)

            yield update
        return

    now, is_over = [what], threading.Event()

    def note(what: str, done: int = 0, total: int | None = None) -> None:
        now[0] = what

    def say() -> None:
        while not is_over.wait(_SILENCE_S):
            console.print(f"… {now[0]}", markup=False, soft_wrap=True)

    speaker = threading.Thread(target=say, name="replicax-at-work", daemon=True)
    speaker.start()
    try:
        yield note
    finally:
        is_over.set()
        speaker.join()
