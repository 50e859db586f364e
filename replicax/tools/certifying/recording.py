"""The record of a run: what each step read, computed and assigned, by name, as few numbers."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from replicax.tensorflow.proof.recording import Tensor

#: How many numbers a value may have to be kept as it is, beside its sketch.
KEPT_WHOLE = 64
#: The kinds of what is recorded, in the order of causes within a step.
KINDS = (
    "rows", "random state", "draw", "probe", "statistic", "loss", "local gradient norm", "gradient", "all-reduce",
    "applied gradient", "rate", "update", "optimizer", "variable", "state", "metric", "result",
)  # fmt: skip


class Value(NamedTuple):
    """An array as few numbers, or the digests of rows."""

    dtype: str
    shape: tuple[int, ...]
    norm: float
    sketch: tuple[float, ...]  # linear: that of a sum is the sum of these
    digest: str  # of its bytes
    numbers: tuple[float, ...] = ()  # all of them, in order, if they are few
    rows: tuple[str, ...] = ()  # digests

    @classmethod
    def of(cls, array: np.ndarray) -> Value:
        array = np.asarray(array)
        digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]
        flat = np.stack([array.real, array.imag]).ravel() if np.iscomplexobj(array) else array.astype(np.float64)
        tensor = Tensor.of("", np.asarray(flat, np.float64))
        whole = tuple(np.ravel(flat).tolist()) if flat.size <= KEPT_WHOLE else ()
        return cls(str(array.dtype), tuple(array.shape), tensor.norm, tensor.sketch, digest, whole)

    @classmethod
    def of_rows(cls, rows: Sequence[str]) -> Value:
        """Returns the value of the rows of a batch."""
        return cls("rows", (len(rows),), 0.0, (), "", (), tuple(rows))

    @property
    def is_finite(self) -> bool:
        """Whether no number is infinite or none."""
        return math.isfinite(self.norm)

    def distance(self, other: Value, factor: float = 1.0) -> float:
        """Returns about the norm of the difference of `factor` times this value and another one."""
        if self.digest == other.digest and factor == 1.0:
            return 0.0
        if self.numbers and len(self.numbers) == len(other.numbers):
            return math.dist([factor * each for each in self.numbers], other.numbers)
        pairs = zip(self.sketch, other.sketch, strict=True)
        return math.sqrt(sum((factor * one - another) ** 2 for one, another in pairs) / len(self.sketch))

    def ratio(self, other: Value) -> float:
        """Returns the factor by which this value is nearest to the other one; NaN for zero."""
        square = sum(one * one for one in self.sketch)
        return sum(a * b for a, b in zip(self.sketch, other.sketch, strict=True)) / square if square else math.nan


class Event(NamedTuple):
    """Something with a name in a step."""

    step: int  # from 1
    kind: str
    name: str
    number: int  # how many there were before with this name, in the step
    line: str  # of the script, such as `"train.py:12"`; empty where unknown
    combine: str  # of parts: "one" (they are equal), "sum", "mean", "each" (never compared as one), "rows"
    parts: Mapping[str, Value]  # by replica or worker

    @property
    def key(self) -> tuple[int, int, str, int]:
        """The part that the same event has in another run; these sort by cause."""
        return self.step, KINDS.index(self.kind), self.name, self.number

    @property
    def disagrees(self) -> bool:
        """Whether parts differ that have to be equal."""
        return self.combine == "one" and len({part.digest for part in self.parts.values()}) > 1

    @property
    def value(self) -> Value:
        """The value of all parts together."""
        parts = list(self.parts.values())
        if self.combine == "rows":
            return Value.of_rows(sorted(row for part in parts for row in part.rows))
        if self.combine == "one" or len(parts) == 1 or len({part.digest for part in parts}) == 1 != self.is_sum:
            return parts[0]
        factor = 1.0 if self.combine == "sum" else 1.0 / len(parts)
        sketch = tuple(factor * sum(each) for each in zip(*(part.sketch for part in parts), strict=True))
        numbers = tuple(factor * sum(each) for each in zip(*(part.numbers for part in parts), strict=True))
        norm = math.sqrt(sum(each * each for each in sketch) / len(sketch))
        return Value(parts[0].dtype, parts[0].shape, norm, sketch, "", numbers)

    @property
    def is_sum(self) -> int:
        """1 where equal parts are added up, too."""
        return int(self.combine == "sum")


class Recording(NamedTuple):
    """The record of a run."""

    events: tuple[Event, ...]
    error: str  # the end of a traceback, if the script ended early
    facts: Mapping[str, object]  # versions, mesh, the lowest dtype of its products

    @property
    def steps(self) -> int:
        """How many steps were made."""
        return max((event.step for event in self.events), default=0)

    def by_key(self) -> dict[tuple[int, int, str, int], Event]:
        """Returns the events by key, sorted."""
        return {event.key: event for event in sorted(self.events, key=lambda event: event.key)}

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(self._asdict()), encoding="utf-8")

    @classmethod
    def read(cls, paths: Sequence[Path]) -> Recording:
        """Reads what the workers of a run have written, as one recording."""
        merged: dict[tuple[int, int, str, int], Event] = {}
        errors: list[str] = []
        facts: dict[str, object] = {}
        for path in paths:
            found = json.loads(path.read_text(encoding="utf-8"))
            errors.append(found["error"])
            facts = facts or found["facts"]
            for step, kind, name, number, line, combine, parts in found["events"]:
                values = {part: _value(value) for part, value in parts.items()}
                event = Event(step, kind, name, number, line, combine, values)
                if (other := merged.get(event.key)) is not None:
                    event = event._replace(parts={**other.parts, **event.parts})
                merged[event.key] = event
        return cls(tuple(merged.values()), next(filter(None, errors), ""), facts)


def _value(fields: Sequence) -> Value:
    dtype, shape, norm, sketch, digest, numbers, rows = fields
    return Value(dtype, tuple(shape), norm, tuple(sketch), digest, tuple(numbers), tuple(rows))
