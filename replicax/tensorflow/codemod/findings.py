"""The findings of a conversion: places that need a hand edit, and notes on what was converted."""

from __future__ import annotations

from typing import Literal, NamedTuple

Severity = Literal["edit", "note"]


class Finding(NamedTuple):
    """One place of a script.

    Attributes:
        line: Its line in the original script, from 1.
        name: What stands there: a name of TensorFlow, or the kind of construct.
        reason: Why it is not converted and what to do, or what to know about the conversion: sentences.
        severity: `"edit"`: it was left as it was, and needs a hand edit. `"note"`: it was converted.
    """

    line: int
    name: str
    reason: str
    severity: Severity = "edit"

    def comment(self) -> str:
        """Returns the comment that marks the place in the converted script, without its indentation."""
        return f"# replicax: {self.name}: {self.reason}"
