"""The findings of a conversion: places that need a hand edit, and notes on what was converted."""

from __future__ import annotations

from typing import Literal, NamedTuple

Severity = Literal["edit", "note"]


class Finding(NamedTuple):
    """One place of a script."""

    line: int  # in the original script, from 1
    name: str  # what stands there: a name of TensorFlow, or the kind of construct
    reason: str  # sentences: why it is not converted and what to do, or what to know about the conversion
    severity: Severity = "edit"  # "edit": it was left as it was; "note": it was converted

    def comment(self) -> str:
        """Returns the comment that marks the place in the converted script, without its indentation."""
        return f"# replicax: {self.name}: {self.reason}"
