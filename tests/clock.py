"""The time of a test, which stands still until the test moves it on."""

from __future__ import annotations

from collections.abc import Callable, Mapping


class Clock:
    """Takes the place of `time.monotonic`, and its `sleep` that of `time.sleep`; `at` says what happens when."""

    def __init__(self, now: float = 0.0, at: Mapping[float, Callable[[], object]] | None = None):
        self.now, self._at = now, dict(at or {})

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        """Moves on."""
        self.now += seconds
        for time in [time for time in self._at if time <= self.now]:
            self._at.pop(time)()
