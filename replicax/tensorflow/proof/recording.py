"""The record of a run of a script: the objective of each step, and variables after steps."""

from __future__ import annotations

import json
import math
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

#: The steps after which variables are kept when not all of them are.
MARKS = (1, 2, 3, 5, 10, 20, 30, 40, 50)
#: How many numbers stand for a variable beside its norm: at most 8.
SKETCH = 8

#: Returns the values of variables with their names.
Reader = Callable[[], Sequence[tuple[str, np.ndarray]]]


class Finished(BaseException):
    """The script has made as many steps as were wanted. No `except Exception` of the script catches it."""


class Tensor(NamedTuple):
    """A variable after a step, as a few numbers."""

    name: str  # in its own library
    shape: tuple[int, ...]
    norm: float
    # products with `SKETCH` random vectors of ones and minus ones, which depend only on the size
    sketch: tuple[float, ...]

    @classmethod
    def of(cls, name: str, value: np.ndarray) -> Tensor:
        flat = np.asarray(value, np.float64).ravel()
        # Each bit of a byte is a sign in one of the vectors.
        bits = np.random.default_rng(flat.size).integers(0, 256, flat.size, np.uint8)
        total = float(flat.sum())
        sketch = tuple(2.0 * float(flat @ ((bits >> index) & 1)) - total for index in range(SKETCH))
        return cls(name, tuple(value.shape), float(np.linalg.norm(flat)), sketch)

    def distance(self, other: Tensor) -> float:
        """Returns about the norm of the difference of two tensors."""
        # The root mean square of the difference of two sketches is about that.
        squares = [(one - another) ** 2 for one, another in zip(self.sketch, other.sketch, strict=True)]
        return math.sqrt(sum(squares) / len(squares))


class Snapshot(NamedTuple):
    """The variables of one objective after a step."""

    step: int  # how many objectives the run had computed by then, over all sites
    site: int  # which of the script's objectives: 0 for the first that it differentiated
    tensors: tuple[Tensor, ...]  # in the order in which they were differentiated


class Recording(NamedTuple):
    """The record of a run."""

    objectives: tuple[float, ...]  # of each step, summed over the replicas
    initial: tuple[Tensor, ...]  # before the first step
    snapshots: tuple[Snapshot, ...]
    error: str = ""  # the last lines of a traceback, if the script ended early

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(self._asdict()) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Recording:
        """Reads what `write` has written."""
        found = json.loads(path.read_text(encoding="utf-8"))
        return cls(
            tuple(found["objectives"]),
            tuple(map(_tensor, found["initial"])),
            tuple(Snapshot(step, site, tuple(map(_tensor, tensors))) for step, site, tensors in found["snapshots"]),
            found["error"],
        )


def _tensor(fields: Sequence) -> Tensor:
    name, shape, norm, sketch = fields
    return Tensor(name, tuple(shape), norm, tuple(sketch))


class Recorder:
    """Collects a recording while a script runs."""

    def __init__(self, steps: int, stop: bool, every: bool = False):
        # `stop`: the script ends then, with `Finished`. `every`: variables are kept after each step, not only `MARKS`.
        self._steps, self._stop, self._every = steps, stop, every
        self._lock = threading.Lock()
        self._readers: list[Reader] = []
        self._by_replica: dict[int, list[tuple[int, float]]] = defaultdict(list)
        self._snapshots: list[Snapshot] = []
        self._initial: list[Tensor] = []
        self._seen = 0
        self._depth = 0

    def site(self, reader: Reader) -> int:
        """Returns the number of a new site: a place that differentiates, with the variables that `reader` reads."""
        self._readers.append(reader)
        return len(self._readers) - 1

    def keep_initial(self, site: int) -> None:
        """Keeps the variables of a site as those before the first step, if no step has been made."""
        if not self._seen and not self._by_replica:
            self._initial += [Tensor.of(name, value) for name, value in self._readers[site]()]

    def objective(self, site: int, replica: int, value: float) -> None:
        """Takes the value of an objective on one replica."""
        with self._lock:
            self._by_replica[replica].append((site, value))

    @property
    def made(self) -> int:
        """How many steps have been made: by the replica that has made the fewest."""
        return min(map(len, self._by_replica.values()), default=0)

    def boundary(self, may_stop: bool = True) -> None:
        """Keeps the variables if a step has been made since the last call; called outside of all steps."""
        before, self._seen = self._seen, self.made
        if self._seen == before:
            return
        marked = self._every or any(before < mark <= self._seen for mark in MARKS)
        if marked and before < self._steps:
            for site in sorted({site for site, _ in next(iter(self._by_replica.values()))[before : self._seen]}):
                tensors = tuple(Tensor.of(name, value) for name, value in self._readers[site]())
                self._snapshots.append(Snapshot(self._seen, site, tensors))
        if may_stop and self._stop and self._seen >= self._steps:
            raise Finished

    def recording(self, error: str = "") -> Recording:
        count = min(self.made, self._steps)
        sums = [sum(events[step][1] for events in self._by_replica.values()) for step in range(count)]
        return Recording(tuple(sums), tuple(self._initial), tuple(self._snapshots), error)

    def around(self, call: Callable, settle: Callable[[], None] = lambda: None) -> Callable:
        """Returns a function that does what `call` does, and is a boundary where it is not inside of another one."""

        def called(*args: object, **kwargs: object) -> object:
            self._depth += 1
            try:
                result = call(*args, **kwargs)
            finally:
                self._depth -= 1
            if not self._depth:
                settle()
                self.boundary()
            return result

        return called
