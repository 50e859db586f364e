"""How long a process waits for others. Whoever starts a job or a service hands it down; tests hand in less."""

from __future__ import annotations

import math
from typing import NamedTuple


class Patience(NamedTuple):
    """How long a process waits for others, in seconds.

    Attributes:
        start: For those that are about to connect.
        silence: For a sign of one that is there; afterwards it counts as silent.
        end: For those that are about to end.
        again: Until it asks once more.
        stall: For progress of one that is there; by default it may take any time.
    """

    start: float
    silence: float
    end: float
    again: float
    stall: float = math.inf
