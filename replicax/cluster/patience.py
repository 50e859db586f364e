"""How long a process waits for others. Whoever starts a job or a service hands it down; tests hand in less."""

from __future__ import annotations

import math
from typing import NamedTuple


class Patience(NamedTuple):
    """How long a process waits for others, in seconds."""

    start: float  # for those that are about to connect
    silence: float  # for a sign of one that is there; afterwards it counts as silent
    end: float  # for those that are about to end
    again: float  # until it asks once more
    stall: float = math.inf  # for progress of one that is there; by default it may take any time
