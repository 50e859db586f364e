"""A progress bar for loops of one's own: one for the job, and one line at the end where the output is a log."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Generic, TypeVar, cast

import jax
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress as Bar, TextColumn, TimeRemainingColumn

from replicax.checks import checked_int
from replicax.errors import ArgumentError
from replicax.tools.reporting.chief import is_chief
from replicax.values import PerReplica

_T = TypeVar("_T")
_SECONDS_BETWEEN_DRAWINGS = 0.25  # of a line that is read


class Progress(Generic[_T]):
    """The progress of a loop, an iterator: a loop that breaks off and goes on later continues with the next batch."""

    def __init__(self, batches: Iterable[_T], total: int | None, description: str, console: Console):
        self._batches, self._total, self._description = batches, total, description
        self._console = console
        self._iterator: Iterator[_T] | None = None
        self._bar: Bar | None = None
        self._task: Any = None
        self._steps = self._rows = 0
        self._values: dict[str, Any] = {}
        self._began = self._drawn = 0.0
        self._is_over = False

    def __iter__(self) -> Iterator[_T]:
        if self._iterator is None or self._is_over:
            self._begin()
        return self

    def __next__(self) -> _T:
        if self._iterator is None:
            self._begin()
        assert self._iterator is not None
        try:
            batch = next(self._iterator)
        except BaseException:
            self.close()
            raise
        self._steps += 1
        self._rows += rows_of(batch)
        self._draw()
        return batch

    def __enter__(self) -> Progress[_T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def show(self, **values: Any) -> None:
        """Shows values, such as `loss=loss`, behind the bar."""
        for name, value in values.items():
            if np.size(value) != 1:
                raise ArgumentError(f"progress.show takes numbers; {name!r} has the shape {np.shape(value)}.")
        self._values.update(values)
        self._draw()

    def close(self) -> None:
        """Ends the bar, or prints its line. A loop that comes to its end does so by itself."""
        if self._iterator is None or self._is_over:
            return
        self._is_over = True
        if self._bar is not None:
            self._update(self._bar, waits=True)
            self._bar.stop()
            self._bar = None
        elif is_chief():
            self._console.print(self._line(), highlight=False, markup=False, soft_wrap=True)

    def _begin(self) -> None:
        self._iterator, self._is_over = iter(self._batches), False
        self._steps = self._rows = 0
        self._began, self._drawn = time.monotonic(), -math.inf

    # Drawing.

    def _draw(self) -> None:
        now = time.monotonic()
        if self._is_over or now - self._drawn < _SECONDS_BETWEEN_DRAWINGS or not self._console.is_terminal:
            return
        self._drawn = now
        if not is_chief():
            return
        if self._bar is None:
            self._bar = _bar(self._console)
            self._task = self._bar.add_task(self._description, total=self._total, speed="", values="")
            self._bar.start()
        self._update(self._bar, waits=False)

    def _update(self, bar: Bar, waits: bool) -> None:
        total = self._steps if self._is_over else self._total
        bar.update(
            self._task, completed=self._steps, total=total, speed=self._speed(), values=self._text(waits), refresh=True
        )

    def _speed(self) -> str:
        seconds = max(time.monotonic() - self._began, 1e-9)
        return f"{self._rows / seconds:,.0f} rows/s" if self._rows else f"{self._steps / seconds:,.1f} steps/s"

    def _text(self, waits: bool) -> str:
        """Returns the values; those that are still being computed as they were before, unless it `waits`."""
        texts = []
        for name, value in self._values.items():
            # To wait for an array would end the overlap of a step with the preparation of the next one.
            if waits or not isinstance(value, jax.Array) or cast(Any, value).is_ready():  # JAX types it not.
                self._values[name] = value = _number(value)
            if not isinstance(value, jax.Array):
                texts.append(f"{name} {value:.4g}")
        return "  ".join(texts)

    def _line(self) -> str:
        seconds = time.monotonic() - self._began
        parts = [f"{self._steps:,} steps in {seconds:.1f} s", self._speed(), self._text(waits=True)]
        before = f"{self._description}: " if self._description else ""
        return before + ", ".join(part for part in parts if part)


def progress(
    batches: Iterable[_T], *, total: int | None = None, description: str = "", console: Console | None = None
) -> Progress[_T]:
    """Returns an iterator over batches that shows how far a loop is: one bar for the whole job, on the chief.

    Where the output is no terminal (a log file, a cluster's console) it prints one line at the end of a pass instead.

    Args:
        batches: What is looped over, such as a distributed dataset. An object with a length is one whose passes are
            counted.
        total: How many batches a pass has, where `batches` has no length.
        description: What stands before the bar, such as `"epoch 3"`.
        console: Where it is drawn, a `rich.console.Console`; by default the standard output.

    Raises:
        ArgumentError: An argument has the wrong type or value.

    Example:
        >>> import replicax as rx
        >>> bar = rx.progress([1.0, 2.0, 3.0], description="epoch 1")
        >>> for batch in bar:
        ...     bar.show(loss=batch / 2)  # doctest: +ELLIPSIS
        epoch 1: 3 steps in 0.0 s, ... steps/s, loss 1.5
    """
    if not isinstance(batches, Iterable):
        raise ArgumentError(f"rx.progress loops over batches, got {batches!r:.100}.")
    if total is None:
        with contextlib.suppress(TypeError, NotImplementedError):
            total = len(batches)  # type: ignore[arg-type]  # Asked, since only some have one.
    else:
        total = checked_int("total", total, note=", or None if it is not known")
    return Progress(batches, total, description, Console() if console is None else console)


def rows_of(batch: object) -> int:
    """Returns the number of rows of a global batch, also of a distributed one; 0 if it has none."""
    leaves = jax.tree.leaves(batch, is_leaf=lambda leaf: isinstance(leaf, PerReplica))
    if not leaves:
        return 0
    first = leaves[0]
    if isinstance(first, PerReplica):
        return math.prod(first.stacked.shape[:2]) if first.component_shape else 0
    shape = np.shape(first) if hasattr(first, "shape") else ()
    return int(shape[0]) if shape else 0


def _number(value: Any) -> Any:
    return np.asarray(value).reshape(()).item()


def _bar(console: Console) -> Bar:
    return Bar(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]}", markup=False),
        TextColumn("{task.fields[values]}", markup=False),
        TimeRemainingColumn(),
        console=console,
        auto_refresh=False,
    )
