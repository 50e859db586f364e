"""Runs a script and traces some of its steps: `python -m replicax.tools.profiling.traced FIRST LAST FOLDER SCRIPT ...`.

A step is one call of a compiled program: of an `rx.function`, of `strategy.run` outside of one, or a step of `fit`.
They are counted from 1. The trace lies in `FOLDER/<task>`, such as `worker-0`, beside what the script's input took.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import jax

from replicax.cluster import detect_cluster
from replicax.data.input_times import InputTimes
from replicax.runtime.calls import Calls
from replicax.tools.profiling.hot_spots import INPUT


class Recorder:
    """Traces the steps from `first` to `last`."""

    def __init__(self, folder: Path, first: int, last: int):
        self._folder, self._first, self._last = folder, first, last
        self._steps = 0
        self._is_running = False
        self._input: InputTimes | None = None  # of the pass that gave most batches

    def count(self) -> None:
        """Notes that a step begins."""
        self._steps += 1
        if self._steps == self._first:
            _wait()
            jax.profiler.start_trace(str(self._folder), create_perfetto_trace=True)
            self._is_running = True
        elif self._steps == self._last + 1:
            self._stop()

    def took(self, times: InputTimes) -> None:
        """Notes that the script has taken a batch of a distributed dataset."""
        if self._input is None or times.steps >= self._input.steps:
            self._input = times

    def end(self) -> None:
        """Ends the trace, if the script has ended in the middle of it, and writes down what its input took."""
        self._stop()
        if self._input is not None and self._folder.is_dir():
            (self._folder / INPUT).write_text(str(self._input), encoding="utf-8")
        if self._steps < self._first:
            print(f"replicax profile: the script ended after {self._steps} steps; the trace was to begin at step "
                  f"{self._first}. Choose others: --steps 1:{max(self._steps, 1)}", file=sys.stderr)  # fmt: skip

    def _stop(self) -> None:
        if self._is_running:
            self._is_running = False
            _wait()
            jax.profiler.stop_trace()


def _wait() -> None:
    """Waits until the devices have computed all that was asked of them: it belongs to the steps before."""
    for array in jax.live_arrays():
        if not array.is_deleted():
            array.block_until_ready()


def main() -> None:
    """Runs the script."""
    first, last, folder, script, *arguments = sys.argv[1:]
    task = detect_cluster().config.task
    recorder = Recorder(Path(folder) / str(task or "worker:0").replace(":", "-"), int(first), int(last))
    one: Callable[[Calls], AbstractContextManager[Any]] = Calls.one

    def counted(calls: Calls) -> AbstractContextManager[Any]:
        recorder.count()
        return one(calls)

    got: Callable[[InputTimes, float], None] = InputTimes.got

    def noted(times: InputTimes, began: float) -> None:
        got(times, began)
        recorder.took(times)

    # Only in this process, which is there to be traced.
    Calls.one = counted  # type: ignore[assignment,method-assign]
    InputTimes.got = noted  # type: ignore[assignment,method-assign]
    sys.argv = [script, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        recorder.end()


if __name__ == "__main__":
    main()
