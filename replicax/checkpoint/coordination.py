"""Where the processes of a job tell each other how far they are, on the host: no device takes part.

So a thread may meet the other processes' threads while the devices compute. Every meeting has a name and a deadline,
and says who did not come.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import jax

import replicax.health as health
from replicax.compat.jax_processes import delete_stored, publish, published
from replicax.errors import CheckpointError

_T = TypeVar("_T")
_PREFIX = "replicax/checkpoint"
_POLL_MS = 1000
_numbers = itertools.count()


class Meeting:
    """A series of meetings of all processes, such as those of one save. All processes make them in the same order.

    Args:
        name: What it is about, for messages.
        timeout_s: How long to wait for the others each time, in seconds.
    """

    def __init__(self, name: str, timeout_s: float):
        self._name, self._timeout_s = name, timeout_s
        self._number = next(_numbers)
        self._process, self._count = jax.process_index(), jax.process_count()

    @property
    def is_chief(self) -> bool:
        """Whether this is the process that decides and commits."""
        return self._process == 0

    def tell(self, stage: str, value: str = "", waits: bool = True) -> list[str]:
        """Tells the others `value` and returns the values of all, in their order.

        Args:
            stage: What this process has done.
            value: What to tell.
            waits: Whether to wait for the others; otherwise only this process's value is returned.

        Raises:
            CheckpointError: Some process did not come in time.
        """
        if self._count == 1:
            return [value]
        publish(self._key(stage, self._process), value)
        return self._collected(stage, range(self._count)) if waits else [value]

    def hear_chief(self, stage: str, value: str = "") -> str:
        """Returns the chief's `value` in every process."""
        if self._count == 1:
            return value
        if self.is_chief:
            publish(self._key(stage, 0), value)
            return value
        return self._collected(stage, [0])[0]

    def check_same(self, what: str, value: str) -> None:
        """Checks that all processes have the same `value`, such as the path that all of them write to.

        Raises:
            CheckpointError: They have not, or some process did not come in time.
        """
        told = self.tell(f"same {what}", value)
        if len(set(told)) == 1:
            return
        by_value: dict[str, list[str]] = {}
        for process, each in enumerate(told):
            by_value.setdefault(each, []).append(str(process))
        said = "; ".join(f"process {', '.join(who)}: {each}" for each, who in by_value.items())
        raise CheckpointError(
            f"{self._name}: the processes have different values for the {what} ({said}). Give all of them the same: "
            "each writes and reads its part there, so it must be a place that all of them see."
        )

    def act(self, stage: str, action: Callable[[], _T], failed: str) -> _T:
        """Acts, waits until all processes have, and returns what came of it here.

        Args:
            stage: What all do.
            action: Does it.
            failed: What to say where it fails: `"... could not be written"`.

        Raises:
            CheckpointError: It failed, here or in another process, or some process did not come in time.
        """
        failure: Exception | None = None
        try:
            with health.phase(health.CHECKPOINT):
                result = action()
        except Exception as error:
            failure = error
        told = self.tell(stage, "" if failure is None else f"{type(failure).__name__}: {failure}"[:2000])
        if isinstance(failure, CheckpointError):
            raise failure
        if failure is not None:
            raise CheckpointError(f"{failed}: {failure}") from failure
        for process, problem in enumerate(told):
            if problem:
                raise CheckpointError(f"{failed} by process {process}: {problem}")
        return result

    def end(self) -> None:
        """Lets the chief forget what was told in the meetings before this one, which all have left."""
        if self._count > 1 and self.is_chief and self._number:
            delete_stored(f"{_PREFIX}/{self._number - 1}")

    def _key(self, stage: str, process: int) -> str:
        return f"{_PREFIX}/{self._number}/{stage}/{process}"

    def _collected(self, stage: str, processes: Sequence[int]) -> list[str]:
        with health.phase(health.WAIT, f"{self._name}: {stage}", () if len(processes) == self._count else processes):
            return self._waited(stage, processes)

    def _waited(self, stage: str, processes: Sequence[int]) -> list[str]:
        deadline = time.monotonic() + self._timeout_s
        found: dict[int, str] = {}
        missing = list(processes)
        while missing:
            left_ms = max(1, int((deadline - time.monotonic()) * 1000))
            value = published(self._key(stage, missing[0]), min(left_ms, _POLL_MS))
            if value is not None:
                found[missing.pop(0)] = value
            elif time.monotonic() >= deadline:
                # Those behind the first may have come: ask once, without waiting.
                absent = [process for process in missing if published(self._key(stage, process), 1) is None]
                if not absent:
                    continue
                raise CheckpointError(
                    f"{self._name}: process {self._process} waited {self._timeout_s:g} s at {stage!r} for "
                    f"{', '.join(f'process {process}' for process in absent)}. All processes must save and restore "
                    "together, in the same order; look at the log of those that did not come."
                )
        return [found[process] for process in processes]
