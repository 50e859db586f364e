"""One thing that the doctor has looked at, and what came of it."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping

SCHEMA_VERSION = 1


class Severity(enum.Enum):
    """How well something is."""

    OK = "ok"
    WARN = "warn"  # It works, or may, but somebody should look at it.
    FAIL = "fail"  # Training, or part of it, will not work.


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    name: str  # such as "keras backend"; it does not change from version to version
    status: Severity
    text: str
    cure: str = ""  # empty if all is well
    # the text in numbers, as JSON can hold them
    details: Mapping[str, object] = dataclasses.field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        """Returns it as JSON can hold it."""
        return {
            "name": self.name,
            "status": self.status.value,
            "text": self.text,
            "cure": self.cure,
            "details": dict(self.details),
        }


def ok(name: str, text: str, **details: object) -> Finding:
    """Returns a finding that all is well."""
    return Finding(name, Severity.OK, text, "", details)


def warn(name: str, text: str, cure: str, **details: object) -> Finding:
    """Returns a finding that somebody should look at."""
    return Finding(name, Severity.WARN, text, cure, details)


def fail(name: str, text: str, cure: str, **details: object) -> Finding:
    """Returns a finding that something will not work."""
    return Finding(name, Severity.FAIL, text, cure, details)
